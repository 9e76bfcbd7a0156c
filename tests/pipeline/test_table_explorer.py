"""What an operator may look at of a table: bounded, in order, and without what is masked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Version
from tailerd.clock import SystemClock
from tailerd.errors import ExplorerBusyError, MissingVersionError, TailerdError, UsageError
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import find_format, open_table
from tailerd.formats.growth import TableSize
from tailerd.formats.parts import require_part
from tailerd.pipeline import table_explorer
from tailerd.pipeline.table_explorer import OpenedLog, TableExplorer
from tailerd.storage.table_location import locate_table
from tests.tables.builder import TableBuilder
from tests.tables.opened import part_request


def explorer(table: Path, *, mask: tuple[str, ...] = (), rows: bool = True) -> TableExplorer:
    """Return what looks into one table, whatever its name."""

    async def source(_: str) -> ChangeSource:
        return await open_table(locate_table(str(table)), OpenRequest(identity=["id"]))

    async def log(_: str) -> OpenedLog:
        found = await find_format(locate_table(str(table)))
        notes: list[str] = []
        request = part_request(table, warn=lambda error: notes.append(str(error)))
        inspector = require_part(found.inspector, found.name, "inspection")
        return OpenedLog(inspection=inspector(request), notes=notes)

    return TableExplorer(
        open_source=source,
        open_log=log,
        mask=mask,
        is_showing_rows=rows,
        clock=SystemClock(),
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows 0 to 9 in a commit each; then those of even ids once more, and a large commit."""
    builder = TableBuilder(tmp_path / "t", start_ms=None)
    for number in range(10):
        builder.append([{"id": number, "name": f"first {number}"}])
    for number in range(0, 10, 2):
        builder.append([{"id": number, "name": f"again {number}"}])
    builder.append([{"id": 100 + number, "name": "many"} for number in range(250)])
    return tmp_path / "t"


async def test_growth_is_that_of_the_version_that_was_measured(table: Path) -> None:
    size = TableSize(version=Version(9), size_bytes=10_000, num_files=10, num_rows=10)
    found = await explorer(table).growth("t", size)
    assert (found.version, found.commits, found.num_files) == (9, 10, 10)
    # Sixteen commits within seconds do not show the growth of a month.
    assert found.forecast == {}
    unknown = replace(size, size_bytes=None)
    with pytest.raises(UsageError, match="does not show its size"):
        await explorer(table).growth("t", unknown)


async def test_commits_are_read_from_the_log_newest_first_page_by_page(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_explorer, "PAGE_COMMITS", 6)
    looking = explorer(table)
    pages = [await looking.commits("t", skip) for skip in (0, 6, 12)]
    versions = [int(str(commit["version"])) for page in pages for commit in page.commits]
    assert versions == sorted(versions, reverse=True)
    assert len(set(versions)) == len(versions)
    assert versions[-1] == 0
    assert [page.has_more for page in pages] == [True, True, False]


async def test_a_commit_has_its_rows_page_by_page(table: Path) -> None:
    looking = explorer(table)
    newest = (await looking.commits("t", 0)).commits[0]["version"]
    assert isinstance(newest, int)
    pages = [await looking.commit("t", newest, skip) for skip in (0, 100, 200)]
    ids = [row["id"] for page in pages for row in page.rows]
    assert ids == [100 + number for number in range(250)]
    assert [page.has_more for page in pages] == [True, True, False]
    assert (pages[0].before, pages[0].next) == (newest - 1, None)
    assert pages[0].part_count == 1
    assert {row["_commit_version"] for row in pages[0].rows} == {newest}
    with pytest.raises(TailerdError):
        await looking.commit("t", newest + 5, 0)


async def test_a_key_has_its_history_newest_first(table: Path) -> None:
    found = await explorer(table).key_history("t", "id", "4", None)
    assert [row["name"] for row in found.rows] == ["again 4", "first 4"]
    assert found.next_before is None
    assert found.first is not None
    earlier = await explorer(table).key_history("t", "id", "4", found.rows[0]["_commit_version"])  # type: ignore[arg-type]
    assert [row["name"] for row in earlier.rows] == ["first 4"]
    by_text = await explorer(table).key_history("t", "name", "first 7", None)
    assert [row["id"] for row in by_text.rows] == [7]


async def test_a_look_that_takes_long_goes_on_where_it_ended(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_explorer, "PAGE_ROWS", 1)
    looking = explorer(table)
    names: list[object] = []
    before: int | None = None
    for _ in range(10):
        found = await looking.key_history("t", "id", "4", before)
        names += [row["name"] for row in found.rows]
        if (before := found.next_before) is None:
            break
    assert names == ["again 4", "first 4"]
    assert before is None


@pytest.mark.parametrize(
    ("column", "value"),
    [("nothing", "1"), ("id", "four"), ("id", "9" * 30), ("name.first", "x"), ("Name", "many")],
)
async def test_what_cannot_be_searched_is_refused(table: Path, column: str, value: str) -> None:
    with pytest.raises(UsageError):
        await explorer(table).key_history("t", column, value, None)


async def test_what_is_masked_is_neither_shown_nor_searched(table: Path) -> None:
    looking = explorer(table, mask=("NAME",))
    shown = await looking.commit("t", 3, 0)
    assert shown.masked == ["name"]
    assert "first" not in repr(shown.rows)
    assert shown.rows
    found = await looking.key_history("t", "id", "4", None)
    assert len(found.rows) == 2
    assert "again" not in repr(found)
    refused = []
    for value in ("many", "nobody"):
        with pytest.raises(UsageError) as error:
            await looking.key_history("t", "name", value, None)
        refused.append(str(error.value))
    # It tells nothing of whether the value is there.
    assert refused[0] == refused[1]


async def test_rows_are_not_shown_where_the_configuration_does_not_say_so(table: Path) -> None:
    looking = explorer(table, rows=False)
    assert (await looking.commits("t", 0)).commits
    for look in (looking.commit("t", 1, 0), looking.key_history("t", "id", "1", None)):
        with pytest.raises(UsageError, match="Rows are not shown"):
            await look


async def test_one_looks_at_a_time_and_others_are_told(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_explorer, "WAIT_SECONDS", 0.05)
    looking = explorer(table)
    async with looking._take_turn():
        with pytest.raises(ExplorerBusyError):
            await looking.commits("t", 0)
    assert (await looking.commits("t", 0)).commits


async def test_a_look_that_hangs_is_ended(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_explorer, "MAX_SECONDS", 0.05)

    async def hang(_: str) -> ChangeSource:
        await asyncio.sleep(60)
        raise MissingVersionError("never")

    looking = explorer(table)
    looking._open_source = hang
    with pytest.raises(ExplorerBusyError):
        await looking.commit("t", 1, 0)
    monkeypatch.setattr(table_explorer, "MAX_SECONDS", 20.0)
    assert (await looking.commits("t", 0)).commits
