"""Symbolic links in a table: nothing is deleted or written through one, and few are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tailerd.errors import LinkInPathError, PathOutsideTableError
from tailerd.formats.delta.log import log_reader
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, ChecksumPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy
from tailerd.storage.lease import Lease
from tailerd.storage.local import LocalStore
from tailerd.storage.table_location import locate_table
from tests.cli.commands import Commands
from tests.doubles.sim_clock import SimClock
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.tables.builder import TableBuilder
from tests.tables.feed import changes

pytestmark = pytest.mark.attack


TODAY = FIRST + 400 * DAY
POLICIES = Policies(
    checkpoint=CheckpointPolicy(every_commits=1, min_interval_seconds=0),
    checksum=ChecksumPolicy(is_enabled=True),
    cleanup=CleanupPolicy(is_enabled=True),
)


@pytest.fixture(autouse=True)
def nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a commit that is a link nothing but its rest says that its writer has finished."""
    monkeypatch.setattr(log_reader, "STILL_SECONDS", 0.05)


def clock() -> SimClock:
    return SimClock(TODAY, is_automatic=True)


def maintenance(folder: Path) -> DeltaMaintenance:
    return DeltaMaintenance(LogReader.at(str(folder)), POLICIES, clock=clock())


async def maintain(folder: Path) -> list[str]:
    """Do all that is due once; return the jobs."""
    work = maintenance(folder)
    assessment = await work.assessment()
    due = [each for each in assessment.decisions if each.is_due]
    for decision in due:
        await work.apply(assessment, decision)
    return [each.job for each in due]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def another_table(folder: Path) -> TableBuilder:
    """A table with rows, all of whose files are old, named as sidecars could be."""
    table = TableBuilder(folder)
    names = [f"0000000{number}-0000-4000-8000-000000000000.parquet" for number in range(3)]
    table.create(*(table.data_file([{"id": 1}], path=name) for name in names))
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    return table


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


# ---------------------------------------------------------------- deleting and writing


async def test_sidecars_behind_a_link_are_another_tables_files_and_stay(tmp_path: Path) -> None:
    other = another_table(tmp_path / "other")
    table = daily(tmp_path / "orders")
    table.checkpoint(7)
    (table.log / "_sidecars").symlink_to(other.folder)
    before = contents(other.folder), contents(table.log)
    with pytest.raises(LinkInPathError, match="_sidecars is a symbolic link"):
        await maintain(table.folder)
    # Whoever goes on without that look is held up as well.
    reader = LogReader.at(str(table.folder))
    with pytest.raises(LinkInPathError):
        await LogCleanup(reader, clock=clock()).unnamed_sidecars()
    assert (contents(other.folder), contents(table.log)) == before


@pytest.mark.parametrize(
    ("location", "code"), [("orders/log", "link_in_path"), ("log", "path_outside_table")]
)
def test_a_log_behind_a_link_is_not_maintained(
    tmp_path: Path, command: Commands, location: str, code: str
) -> None:
    table = daily(tmp_path / "orders")
    table.checkpoint(7)
    away(table.log, tmp_path / location)
    before = contents(tmp_path)
    refused = command("maintain", table.folder, "--apply")
    assert refused.status == 3
    assert f"error[{code}]" in refused.errors
    assert contents(tmp_path) == before


async def test_a_table_whose_own_folder_is_a_link_is_maintained(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders")
    table.checkpoint(7)
    (tmp_path / "view").symlink_to("orders")
    assert "cleanup" in await maintain(tmp_path / "view")
    assert commits_of(table)[0] == 7


async def test_log_files_that_are_links_stay_and_so_does_what_they_lead_to(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders")
    table.checkpoint(7)
    archive = tmp_path / "archive"
    archive.mkdir()
    archived = table.commit_path(3).rename(archive / "three.json")
    table.commit_path(3).symlink_to(archived)
    assert "cleanup" in await maintain(table.folder)
    assert [each for each in commits_of(table) if each < 8] == [3, 7]
    assert archived.exists()
    assert "cleanup" in await maintain(table.folder), "up to the new checkpoint"
    assert "cleanup" not in await maintain(table.folder), "it is not tried again and again"
    assert [each for each in commits_of(table) if each < 8] == [3]


async def test_what_is_in_the_sidecars_folder_under_any_other_name_stays(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders")
    sidecars = table.log / "_sidecars"
    sidecars.mkdir()
    uuid = "00000000-0000-4000-8000-000000000000"
    ours = [f"{uuid}.parquet", f"{7:020}.checkpoint.0000000001.0000000002.{uuid}.parquet"]
    others = [f"part-00000-{uuid}-c000.snappy.parquet", "x.parquet", f"{uuid}.parquet.bak"]
    for name in (*ours, *others):
        (sidecars / name).write_bytes(b"")
    (sidecars / uuid.replace("0000-4", "0001-4")).with_suffix(".parquet").symlink_to(
        table.commit_path(0)
    )
    found = await LogCleanup(LogReader.at(str(table.folder)), clock=clock()).unnamed_sidecars()
    # The files were written today, which the table's year is before.
    assert found == ()
    late = SimClock(4_000_000_000_000)
    found = await LogCleanup(LogReader.at(str(table.folder)), clock=late).unnamed_sidecars()
    assert {file.name.rpartition("/")[2] for file in found} == set(ours)


@pytest.mark.parametrize("name", ["_delta_log", "_delta_log/_sidecars", "_tailerd"])
async def test_a_folder_that_becomes_a_link_at_the_last_moment_is_not_followed(
    tmp_path: Path, name: str
) -> None:
    orders, other = tmp_path / "orders", tmp_path / "other"
    for folder in (orders, other):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(b"kept")
    (orders / name).rename(tmp_path / "away")
    (orders / name).symlink_to(other / name)
    location = locate_table(str(orders))
    store, root = location.store, location.root
    assert isinstance(store, LocalStore)
    path = f"{root}/{name}/file"
    with pytest.raises(LinkInPathError):
        await store.delete(path)
    with pytest.raises(LinkInPathError):
        await store.put(path, b"new")
    with pytest.raises(LinkInPathError):
        await store.put(f"{root}/{name}/new", b"new", if_absent=True)
    with pytest.raises(LinkInPathError):
        await store.put_nondurable(f"{root}/{name}/new", b"new")
    with pytest.raises(LinkInPathError):
        store.open_output(f"{root}/{name}/new")
    with pytest.raises(LinkInPathError):
        await store.sweep(f"{root}/{name}", 2**60)
    assert contents(other) == {f"{name}/file": b"kept"}


async def test_a_lease_is_not_taken_behind_a_link(tmp_path: Path) -> None:
    orders, other = tmp_path / "orders", tmp_path / "other"
    orders.mkdir()
    other.mkdir()
    (orders / "_tailerd").symlink_to(other)
    location = locate_table(str(orders))
    lease = Lease(location.store, location.root, clock=clock())
    with pytest.raises(LinkInPathError):
        await lease.acquire()
    assert contents(other) == {}


async def test_a_hint_that_is_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    table = daily(tmp_path / "orders")
    target = tmp_path / "target.json"
    target.write_text("{}")
    (table.log / "_last_checkpoint").symlink_to(target)
    location = locate_table(str(table.folder))
    store, root = location.store, location.root
    await store.put(f"{root}/_delta_log/_last_checkpoint", b"new")
    assert target.read_text() == "{}"
    assert (table.log / "_last_checkpoint").read_bytes() == b"new"


# ---------------------------------------------------------------- reading


def away(path: Path, location: Path) -> None:
    """Move a file or folder to a location, and leave a link."""
    location.parent.mkdir(parents=True, exist_ok=True)
    path.rename(location)
    path.symlink_to(location)


def make_file(table: TableBuilder) -> Path:
    return next(path for path in table.folder.rglob("*.parquet") if "_delta_log" not in path.parts)


MOVED: dict[str, Callable[[TableBuilder], Path]] = {
    "data file": make_file,
    "partition": lambda table: make_file(table).parent,
    "deletion vector": lambda table: next(table.folder.glob("deletion_vector*.bin")),
    "commit": lambda table: table.commit_path(1),
    "log": lambda table: table.log,
}


def living(folder: Path) -> TableBuilder:
    """A table in partitions, with a deletion vector."""
    table = TableBuilder(
        folder,
        fields=[("id", "long"), ("day", "string")],
        partition_by=["day"],
        reader_features=["deletionVectors"],
    )
    [add] = table.append([{"id": 1, "day": "a"}, {"id": 2, "day": "a"}]).adds
    table.delete_rows(add, [0])
    return table


@pytest.mark.parametrize("what", MOVED)
async def test_a_link_out_of_the_table_is_read_where_that_is_allowed_alone(
    tmp_path: Path, what: str
) -> None:
    table = living(tmp_path / "orders")
    rows = await changes(table.folder)
    assert len(rows) == 3
    location = tmp_path / "elsewhere" / "it"
    away(MOVED[what](table), location)
    with pytest.raises(PathOutsideTableError, match="symbolic link") as refused:
        await changes(table.folder)
    assert "--allow-path" in str(refused.value)
    with pytest.raises(PathOutsideTableError):
        await changes(table.folder, allowed=[str(tmp_path / "else")])
    assert await changes(table.folder, allowed=[str(location.parent)]) == rows


@pytest.mark.parametrize("what", MOVED)
async def test_a_link_within_the_table_and_one_to_it_are_followed(
    tmp_path: Path, what: str
) -> None:
    table = living(tmp_path / "orders")
    rows = await changes(table.folder)
    away(MOVED[what](table), table.folder / "cold" / "it")
    (tmp_path / "view").symlink_to("orders")
    assert await changes(tmp_path / "view") == rows


async def test_a_sidecar_behind_a_link_is_not_read(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", reader_features=["v2Checkpoint"])
    table.append([{"id": 1}])
    table.checkpoint(layout="v2-json", sidecars=1)
    table.commit_path(0).unlink()
    [sidecar] = (table.log / "_sidecars").iterdir()
    away(sidecar, tmp_path / "elsewhere" / "it")
    with pytest.raises(PathOutsideTableError):
        await LogReader.at(str(table.folder)).open()
    reader = LogReader.at(str(table.folder), allowed=[str(tmp_path / "elsewhere")])
    assert (await reader.open()).num_files == 1


def test_tail_reads_through_a_link_that_it_is_allowed(tmp_path: Path, command: Commands) -> None:
    table = living(tmp_path / "orders")
    away(MOVED["partition"](table), tmp_path / "elsewhere" / "it")
    refused = command.tail(table.folder, "--from", "snapshot")
    assert refused.status == 3
    assert "path_outside_table" in refused.errors
    location = tmp_path / "elsewhere"
    allowed = command.tail(table.folder, "--from", "snapshot", "--allow-path", location)
    assert [row["id"] for row in allowed.rows] == [2]


@pytest.mark.parametrize("name", ["inspect", "history", "maintain"])
def test_commands_that_read_the_log_alone_take_the_option_that_they_ask_for(
    tmp_path: Path, command: Commands, name: str
) -> None:
    table = living(tmp_path / "orders")
    away(MOVED["commit"](table), tmp_path / "elsewhere" / "it")
    refused = command(name, table.folder)
    assert refused.status == 3
    assert "--allow-path" in refused.errors
    assert command(name, table.folder, "--allow-path", tmp_path / "elsewhere").status == 0
