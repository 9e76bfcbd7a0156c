"""A storage that fails at any request: the right snapshot or one clear error, never a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailerd.errors import FileMissingError, StorageError, TailerdError
from tailerd.formats.delta.log import segment_replay
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.stats.table_growth import SnapshotCache
from tailerd.storage.local import LocalStore
from tests.doubles.faulty_store import FaultyStore
from tests.formats.delta.histories import (
    CHECKPOINT_KINDS,
    HEAD,
    CheckpointKind,
    assert_described,
    assert_is,
    live_files,
    write_checkpoint,
    write_history,
)
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

ERRORS: list[type[StorageError]] = [StorageError, FileMissingError]
errors = pytest.mark.parametrize("error", ERRORS, ids=lambda kind: kind.code)
kinds = pytest.mark.parametrize("kind", CHECKPOINT_KINDS)

DeliveryLoop = Callable[[LogReader, TableBuilder], Awaitable[None]]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the few commits of a test several fetches."""
    monkeypatch.setattr(segment_replay, "_GROUP_FILES", 2)


async def fail_everywhere(
    table: TableBuilder, error: type[StorageError], delivery_loop: DeliveryLoop
) -> tuple[int, int]:
    """Let the n-th request fail for every n; return how many loops ended well and badly."""
    well = badly = 0
    before = asyncio.all_tasks()
    for n in range(1, 1000):
        store = FaultyStore(LocalStore())
        store.fail_nth(n, error("The storage failed because the test told it to."))
        reader = LogReader(store, str(table.folder), torn_wait_seconds=0)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await delivery_loop(reader, table)
        except TailerdError:
            badly += 1
        else:
            well += 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before, "nothing is left running"
        if len(store.log) < n:
            return well, badly
    raise AssertionError("a delivery_loop of a thousand requests")


async def open_newest(reader: LogReader, table: TableBuilder) -> None:
    assert_is(await reader.open(), table.state())


async def open_an_older_one(reader: LogReader, table: TableBuilder) -> None:
    assert_is(await reader.open(5), table.state(5))


async def open_without_files(reader: LogReader, table: TableBuilder) -> None:
    assert_is(await reader.open(with_files=False), table.state(), with_files=False)


async def describe_files(reader: LogReader, table: TableBuilder) -> None:
    snapshot = await reader.open()
    found = await live_files(reader, snapshot)
    assert_described(found, table.state(), has_stats=False)


async def open_and_advance(reader: LogReader, table: TableBuilder) -> None:
    cache = SnapshotCache(reader)
    await cache.open(4)
    failures = 0
    while cache.snapshot.version < HEAD:
        version = cache.snapshot.version
        try:
            await cache.advance()
        except StorageError:
            failures += 1
            assert failures == 1, "one request fails, once"
            assert cache.snapshot.version == version
        assert_is(cache.snapshot, table.state(cache.snapshot.version))
    found = await live_files(reader, cache.snapshot)
    assert_described(found, table.state(), has_stats=False)


DELIVERY_LOOPS = [
    open_newest,
    open_an_older_one,
    open_without_files,
    describe_files,
    open_and_advance,
]


@errors
@kinds
@pytest.mark.parametrize("delivery_loop", DELIVERY_LOOPS)
async def test_a_failed_request_is_never_a_wrong_state(
    tmp_path: Path, kind: CheckpointKind, error: type[StorageError], delivery_loop: DeliveryLoop
) -> None:
    table = write_history(tmp_path)
    write_checkpoint(table, kind, 3)
    table.checksum()
    well, badly = await fail_everywhere(table, error, delivery_loop)
    # The last delivery loop meets no failure at all.
    assert well >= 1
    assert badly >= 1


@kinds
async def test_a_checkpoint_file_that_is_missing_costs_nothing_but_time(
    tmp_path: Path, kind: CheckpointKind
) -> None:
    table = write_history(tmp_path)
    for path in write_checkpoint(table, kind, 6):
        store = FaultyStore(LocalStore())
        for request in ("get", "open"):
            store.fail_nth(1, FileMissingError("gone"), kind=request, path_part=path.name)
        snapshot = await LogReader(store, str(table.folder)).open()
        assert snapshot.checkpoint_version is None
        assert_is(snapshot, table.state())


@pytest.mark.parametrize("hidden", range(HEAD + 1))
async def test_a_stale_listing_gives_an_older_version_or_is_seen_through(
    tmp_path: Path, hidden: int
) -> None:
    table = write_history(tmp_path)
    store = FaultyStore(LocalStore())
    reader = LogReader(store, str(table.folder))
    store.hide_from_listings(table.commit_path(hidden).name)
    assert_is(await reader.open(), table.state(HEAD - 1 if hidden == HEAD else HEAD))
    assert_is(await reader.open(), table.state())


@pytest.mark.parametrize("hidden", range(HEAD))
async def test_listings_that_stay_stale_are_an_error(tmp_path: Path, hidden: int) -> None:
    table = write_history(tmp_path)
    store = FaultyStore(LocalStore())
    reader = LogReader(store, str(table.folder))
    store.hide_from_listings(table.commit_path(hidden).name, times=2)
    with pytest.raises(TailerdError):
        await reader.open()
    assert_is(await reader.open(), table.state())


@pytest.mark.parametrize("version", [0, 4, HEAD])
async def test_a_torn_read_is_an_error_or_the_right_snapshot(tmp_path: Path, version: int) -> None:
    table = write_history(tmp_path)
    body = table.commit_path(version).read_bytes()
    ends = {at + 1 for at, byte in enumerate(body) if byte == ord("\n")}
    store = FaultyStore(LocalStore())
    reader = LogReader(store, str(table.folder), torn_wait_seconds=0)
    for keep in range(0, len(body), 7):
        if keep in ends or keep + 1 in ends:
            # Whole lines cannot be told from a whole commit.
            continue
        store.tear(table.commit_path(version).name, keep)
        with pytest.raises(TailerdError, match=table.commit_path(version).name):
            await reader.open()
    assert_is(await reader.open(), table.state())
