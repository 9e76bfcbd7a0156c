"""Every IO of every job fails once: no reader sees a wrong state, and the next try succeeds."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailerd.errors import StorageError, TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.storage.base import ObjectStore
from tailerd.storage.local import LocalStore
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import (
    assert_described,
    assert_is,
    live_files,
    write_history,
)
from tests.formats.delta.log_bodies import add, remove
from tests.tables.builder import START_MS, TableBuilder
from tests.tables.naive_log import NaiveState
from tests.waiting import PATIENCE_SECONDS

DAY = 86_400_000
NOW = START_MS + 60 * DAY

Job = Callable[[ObjectStore, str], Awaitable[None]]


async def checkpoint(store: ObjectStore, root: str) -> None:
    reader = LogReader(store, root)
    await LogWriter(reader, clock=SimClock(NOW)).write_checkpoint(await reader.open())


async def checkpoint_with_parquet_manifest(store: ObjectStore, root: str) -> None:
    reader = LogReader(store, root)
    writer = LogWriter(reader, clock=SimClock(NOW))
    await writer.write_checkpoint(await reader.open(), manifest="parquet")


async def compaction(store: ObjectStore, root: str) -> None:
    reader = LogReader(store, root)
    snapshot, _ = await reader.open_listed(with_files=False)
    await LogWriter(reader).write_compaction(snapshot.state, 1, 6)


async def checksum(store: ObjectStore, root: str) -> None:
    reader = LogReader(store, root)
    await LogWriter(reader).write_checksum(await reader.open())


async def cleanup(store: ObjectStore, root: str) -> None:
    reader = LogReader(store, root)
    snapshot, _ = await reader.open_listed(with_files=False)
    job = LogCleanup(reader, clock=SimClock(NOW))
    await job.apply(await job.plan(snapshot.state))


def v1_table(folder: Path) -> TableBuilder:
    table = write_history(folder)
    table.checkpoint(4)
    table.change_metadata(properties={"delta.checkpointPolicy": "classic"})
    table.commit(remove("d", deletionTimestamp=NOW))
    return table


def v2_table(folder: Path) -> TableBuilder:
    table = write_history(folder)
    asyncio.run(checkpoint(LocalStore(), str(folder)))
    table.commit(add("new"), remove("d", deletionTimestamp=NOW))
    return table


def old_table(folder: Path) -> TableBuilder:
    table = write_history(folder)
    table.checkpoint(3, layout="v2-json", sidecars=2)
    table.checkpoint(6)
    table.compact(0, 2)
    return table


JOBS: dict[str, tuple[Callable[[Path], TableBuilder], Job, int]] = {
    "v1-checkpoint": (v1_table, checkpoint, 0),
    "v2-checkpoint": (v2_table, checkpoint, 0),
    "v2-parquet-manifest": (v2_table, checkpoint_with_parquet_manifest, 0),
    "compaction": (write_history, compaction, 0),
    "checksum": (write_history, checksum, 0),
    "cleanup": (old_table, cleanup, 6),
}


def states_of(table: TableBuilder, oldest: int = 0) -> list[NaiveState]:
    return [table.state(version) for version in range(oldest, table.version + 1)]


async def assert_right(table: TableBuilder, states: list[NaiveState]) -> None:
    reader = LogReader(LocalStore(), str(table.folder))
    for state in states:
        snapshot = await reader.open(state.version)
        assert_is(snapshot, state)
        assert_described(await live_files(reader, snapshot), state)
    assert (await reader.open()).version == states[-1].version


class Checked:
    """Compares a log with the states it must have, once for the same bytes."""

    def __init__(self, states: list[NaiveState]) -> None:
        self._states = states
        self._seen: set[frozenset[tuple[str, bytes]]] = set()

    def assert_right(self, table: TableBuilder) -> None:
        files = [path for path in table.folder.rglob("*") if path.is_file()]
        found = frozenset((str(p.relative_to(table.folder)), p.read_bytes()) for p in files)
        if found not in self._seen:
            asyncio.run(assert_right(table, self._states))
            self._seen.add(found)


def count_requests(job: Job, whole: TableBuilder, location: Path) -> int:
    shutil.copytree(whole.folder, location)
    store = FaultyStore(LocalStore())
    asyncio.run(bounded(job(store, str(location))))
    shutil.rmtree(location)
    return len(store.log)


@pytest.mark.full
@pytest.mark.parametrize("name", JOBS)
def test_whichever_io_fails_readers_see_the_truth(
    tmp_path: Path, name: str, pytestconfig: pytest.Config
) -> None:
    make, job, oldest = JOBS[name]
    whole = make(tmp_path / "whole")
    last = count_requests(job, whole, tmp_path / "count")
    checked = Checked(states_of(whole, oldest))
    # In the middle are hundreds of pieces of one Parquet file, which are all alike.
    step = 1 if pytestconfig.getoption("--kills") else 11
    for number in [n for n in range(1, last + 1) if n <= 40 or n > last - 20 or not n % step]:
        location = tmp_path / str(number)
        shutil.copytree(whole.folder, location)
        table = TableBuilder(location)
        store = FaultyStore(LocalStore())
        store.fail_nth(number)
        with pytest.raises(StorageError, match="the test told it to"):
            asyncio.run(bounded(job(store, str(location))))
        checked.assert_right(table)
        assert not list(location.rglob(".tailerd-tmp-*"))
        # What failed once is done by the next try.
        asyncio.run(bounded(job(LocalStore(), str(location))))
        checked.assert_right(table)
        shutil.rmtree(location)


async def bounded(job: Awaitable[None]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await job


@pytest.mark.parametrize("name", ["v1-checkpoint", "v2-checkpoint"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    make, job, _ = JOBS[name]
    table = make(tmp_path)
    before = set(table.log.rglob("*"))
    store = FaultyStore(LocalStore())
    full = StorageError("No space left on device.", remedy="Free some space.")
    for number in range(1, 30):
        store.fail_nth(number, full, kind="put")
    with pytest.raises(StorageError, match="No space left"):
        asyncio.run(bounded(job(store, str(tmp_path))))
    assert set(table.log.rglob("*")) - before <= {table.log / "_sidecars"}


def test_two_daemons_at_once_write_one_checkpoint(tmp_path: Path) -> None:
    table = v1_table(tmp_path)

    async def race() -> list[str]:
        async def one() -> str:
            reader = LogReader(LocalStore(), str(tmp_path))
            snapshot = await reader.open()
            return (await LogWriter(reader).write_checkpoint(snapshot)).outcome

        return sorted(await asyncio.gather(*(one() for _ in range(4))))

    outcomes = asyncio.run(race())
    assert outcomes.count("written") == 1
    assert set(outcomes) == {"already_there", "written"}
    asyncio.run(assert_right(table, states_of(table)))


def test_a_damaged_checkpoint_below_is_passed_over(tmp_path: Path) -> None:
    table = v1_table(tmp_path)
    path = table.log / f"{4:020}.checkpoint.parquet"
    body = bytearray(path.read_bytes())
    body[100:2000] = bytes(1900)
    path.write_bytes(bytes(body))
    try:
        asyncio.run(checkpoint(LocalStore(), str(tmp_path)))
    except TailerdError as error:
        # Where only what a reader does not look at is damaged, the job says so and writes nothing.
        assert f"{4:020}.checkpoint.parquet" in str(error)  # noqa: PT017
        assert not list(table.log.glob(f"{table.version:020}.checkpoint*"))
    asyncio.run(assert_right(table, states_of(table, 5)))
