"""Every clause of the optional parts, against every format that has the part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import MissingVersionError, UnsupportedFeatureError
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table, table_format
from tailerd.formats.inspection import TableInspection
from tailerd.formats.maintenance import MaintenancePolicies
from tailerd.formats.parts import make_demo_table, require_part
from tailerd.storage.table_location import locate_table
from tests.cli.commands import Commands
from tests.doubles.sim_clock import SimClock
from tests.formats.conftest import Table, WrittenDelta, WrittenMemory
from tests.tables.opened import part_request


async def inspected(table: Table) -> TableInspection:
    inspector = require_part(table_format(table.format).inspector, table.format, "inspection")
    return inspector(part_request(table.location, table.format, ledger=table.ledger))


async def test_a_version_is_described_as_the_source_reads_it(table: Table) -> None:
    first = table.append([1, 2, 3])
    head = table.append([4])
    source = await open_table(locate_table(str(table.location)), OpenRequest(ledger=table.ledger))
    inspection = await inspected(table)
    newest = await inspection.describe()
    assert (newest.table_id, newest.version, newest.num_rows) == (source.table_id, head, 4)
    assert [name for name, _ in newest.columns] == (await source.arrow_schema()).names
    json.dumps([newest.schema, dict(newest.facts)])
    assert (await inspection.describe(first)).num_rows == 3
    with pytest.raises(MissingVersionError):
        await inspection.describe(source.next_version(head))


async def test_the_files_of_a_version_hold_its_rows(table: Table) -> None:
    table.append([1, 2, 3])
    table.append([4])
    inspection = await inspected(table)
    files = [file async for some in inspection.files() for file in some]
    counts = [file.num_rows for file in files]
    # Names and sizes of TileDB's fragments do not say how many cells they have.
    if counts != [None, None]:
        assert sum(filter(None, counts)) - sum(file.deleted_rows for file in files) == 4
    assert all(file.size_bytes > 0 for file in files)


async def test_the_history_has_the_newest_commits_oldest_first(table: Table) -> None:
    versions = [table.append([n]) for n in range(4)]
    removed = table.remove(versions[0])
    inspection = await inspected(table)
    found = [commit async for commit in inspection.history(3)]
    assert [commit.version for commit in found] == [*versions[-2:], removed]
    assert found[-1].files_removed or found[-1].change_files
    times = [commit.timestamp_ms for commit in found]
    assert times == sorted(times)
    assert await inspection.version_at(str(versions[1])) == versions[1]


async def test_figures_follow_the_commits_that_come(tmp_path: Path) -> None:
    table = WrittenDelta(tmp_path)
    table.append([1, 2])
    first = table.append([3])
    source = await open_table(locate_table(str(tmp_path)), OpenRequest())
    request = part_request(tmp_path)
    statistics = require_part(table_format("delta").statistics, "delta", "statistics")(request)
    begin = await source.offset_at(first)
    await statistics.open(0.0, first=begin, next_up=begin)
    head = table.append([4])
    while await statistics.advance(1.0):
        pass
    size, pending = statistics.size(), statistics.pending(begin)
    assert (statistics.version, size.version, size.rows) == (head, head, 4)
    assert pending is not None
    assert pending.files == 2
    assert 0 < pending.bytes < size.bytes
    done = Offset(table_id=source.table_id, version=source.next_version(head))
    left = statistics.pending(done)
    assert left is not None
    assert left.files == 0
    # What was forgotten is not known again.
    assert statistics.pending(begin) is None
    assert statistics.reaches(done)


async def test_what_is_due_is_done_once(tmp_path: Path) -> None:
    table = WrittenDelta(tmp_path)
    for n in range(12):
        table.append([n])
    maintainer = require_part(table_format("delta").maintainer, "delta", "maintenance")
    request = part_request(tmp_path)
    work = maintainer.open(request, MaintenancePolicies(), clock=SimClock())
    assessment = await work.assessment()
    due = [each for each in assessment.decisions if each.is_due]
    assert due
    for decision in due:
        result = await work.apply(assessment, decision)
        assert (result.job, result.version) == (decision.job, assessment.version)
    assert not [each for each in (await work.assessment()).decisions if each.is_due]
    await work.check_readable_from(Version(assessment.version), "export")


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_a_demo_changes_with_every_step(tmp_path: Path, command: Commands) -> None:
    make_demo_table(
        require_part(table_format("delta").demo, "delta", "demo"), tmp_path / "orders", 3
    )
    assert len(command("history", tmp_path / "orders", "--json").rows) == 4


@pytest.mark.usefixtures("memory_is_installed")
def test_a_part_that_a_format_lacks_is_an_error_that_names_it(tmp_path: Path) -> None:
    WrittenMemory(tmp_path).append([1])
    kind = table_format("memory")
    for part in (kind.maintainer, kind.statistics, kind.demo):
        assert part is None
    with pytest.raises(UnsupportedFeatureError, match="format memory have no maintenance"):
        require_part(kind.maintainer, kind.name, "maintenance")


def test_commands_show_a_table_of_any_format(table: Table, command: Commands) -> None:
    table.append([1, 2])
    head = table.append([3])
    options = [] if table.ledger is None else ["--ledger", table.ledger.location]
    [found] = command("inspect", table.location, "--json", *options).rows
    assert (found["version"], found["num_rows"]) == (head, 3)
    assert "column name" in command("inspect", table.location).output
    [commit] = command("history", table.location, "--json", "--limit", "1", *options).rows
    assert commit["version"] == head


@pytest.mark.usefixtures("memory_is_installed")
def test_maintaining_a_table_that_its_format_cannot_maintain_says_so(
    tmp_path: Path, command: Commands
) -> None:
    WrittenMemory(tmp_path).append([1])
    ran = command("maintain", tmp_path)
    assert ran.status == 3
    assert "error[unsupported_feature]" in ran.errors
    assert "no maintenance" in ran.errors


def test_reading_rows_loads_nothing_of_configurations() -> None:
    # A worker that loads it is slower to start and keeps it for as long as it runs.
    program = (
        "import sys, tailerd.cli.tail, tailerd.maintenance.job_program\n"
        "from tailerd.formats.detect import table_formats\n"
        "assert [each.reader and each.maintainer for each in table_formats()]\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
