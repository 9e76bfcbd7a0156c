"""A table's size, moved on by commits, is what opening it anew tells."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import BugError, CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.log.live_files import count_rows
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.stats.table_growth import (
    COMMITS_AT_ONCE,
    RECENT_SECONDS,
    WHOLE_SECONDS,
    LogTally,
    SnapshotCache,
    TableGrowth,
)
from tailerd.storage.local import LocalStore
from tailerd.storage.metered import MeteredStore
from tests.formats.delta.histories import HEAD, assert_is, live_files, write_history
from tests.formats.delta.log_bodies import PROTOCOL, add
from tests.tables.builder import CDF, TableBuilder
from tests.tables.naive_log import Action


def rows(count: int, first: int = 0) -> list[dict[str, object]]:
    return [{"id": first + n, "name": "x" * n} for n in range(count)]


def make_reader(table: TableBuilder) -> LogReader:
    return LogReader(LocalStore(), str(table.folder), with_rows=True)


def follow_from(version: int) -> Offset:
    return Offset(table_id="t", version=Version(version))


async def opened(table: TableBuilder, next_version: int = 10**6) -> TableGrowth:
    growth = TableGrowth(make_reader(table))
    await growth.open(0.0, first=None, next_up=follow_from(next_version))
    return growth


async def follow(growth: TableGrowth) -> None:
    while await growth.advance(0.0):
        pass


async def check(growth: TableGrowth, table: TableBuilder) -> None:
    """Compare with what a fresh look at the whole table tells."""
    snapshot = await LogReader.at(str(table.folder)).open()
    size = growth.size()
    assert size.version == snapshot.version
    assert (size.files, size.bytes) == (snapshot.num_files, snapshot.size_bytes)
    assert list(size.size_counts) == snapshot.files.sizes.counts
    assert size.deleted_rows == snapshot.files.vectors.deleted_rows
    assert size.deletion_vectors == snapshot.files.vectors.count
    assert size.rows == await count_rows(LogReader.at(str(table.folder)), snapshot)


async def test_following_commits_tells_what_opening_anew_tells(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    live: list[Action] = table.append(rows(5)).adds
    growth = await opened(table)
    for _ in range(12):
        match chance.choice(("append", "delete rows", "remove", "rewrite", "checkpoint")):
            case "append":
                live += table.append(rows(chance.randint(1, 9))).adds
            case "delete rows" if live:
                add = live.pop(chance.randrange(len(live)))
                live += table.delete_rows(add, [0]).adds
            case "remove" if live:
                table.commit(with_stats(table.remove(live[0]), live.pop(0)))
            case "rewrite" if live:
                before = live.pop()
                new = table.data_file(rows(4), data_change=False)
                table.commit(with_stats(table.remove(before, data_change=False), before), new)
                live.append(new)
            case _:
                table.checkpoint()
        await follow(growth)
        await check(growth, table)
    assert growth.size().rows is not None


def with_stats(remove: Action, add: Action) -> Action:
    """Say in a remove how many rows the file has, as Spark does."""
    remove["remove"]["stats"] = add["add"]["stats"]
    return remove


@pytest.mark.parametrize("is_added_again", [False, True], ids=["statistics lack", "added again"])
async def test_rows_are_unknown_and_not_wrong(tmp_path: Path, is_added_again: bool) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(rows(3)).adds
    growth = await opened(table)
    assert growth.size().rows == 3
    table.commit(add if is_added_again else table.remove(add))
    await follow(growth)
    assert (growth.size().rows, growth.size().files) == (None, int(is_added_again))


async def test_pending_work_counts_commits_not_yet_delivered(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.create()
    table.append(rows(2))
    [add] = table.append(rows(2)).adds
    change = table.cdc_file([{"id": 0, "name": "", "_change_type": "delete"}])
    table.commit(table.remove(add), change)
    table.commit(table.data_file(rows(3), data_change=False))
    growth = await opened(table, next_version=2)
    await follow(growth)
    first = add["add"]["size"]
    pending = growth.pending(follow_from(2))
    assert pending is not None
    # Of version 3 the change file counts, not the file that is removed; version 4 changes no row.
    assert (pending.files, pending.bytes) == (2, first + change["cdc"]["size"])
    delivered = growth.pending(follow_from(5))
    assert delivered is not None
    assert (delivered.files, delivered.bytes) == (0, 0)
    assert growth.pending(follow_from(2)) is None


async def test_a_table_whose_old_versions_are_gone_is_opened_at_its_head(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    for _ in range(5):
        table.append(rows(1))
    table.checkpoint()
    for version in range(4):
        table.commit_path(version).unlink()
    growth = await opened(table, next_version=2)
    assert growth.version == 4
    assert growth.pending(follow_from(2)) is None
    await check(growth, table)


async def test_a_long_backlog_is_taken_in_bounded_steps(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    file = table.data_file(rows(1))
    table.append(rows(1))
    for number in range(COMMITS_AT_ONCE + 1):
        table.commit({"txn": {"appId": "a", "version": number}})
    growth = await opened(table, next_version=1)
    assert await growth.advance(0.0)
    assert growth.version == COMMITS_AT_ONCE
    assert not await growth.advance(0.0)
    assert file["add"]["size"] > 0


async def test_an_idle_table_costs_one_request_and_a_commit_one_more(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append(rows(1))
    store = MeteredStore(LocalStore())
    growth = TableGrowth(LogReader(store, str(table.folder), with_rows=True))
    await growth.open(0.0, first=None, next_up=follow_from(1))
    await growth.advance(0.0)
    store.reset()
    await growth.advance(0.0)
    assert store.total == 1
    store.reset()
    table.append(rows(1))
    await growth.advance(0.0)
    assert store.total == 2


async def test_a_damaged_commit_is_told(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append(rows(1))
    growth = await opened(table)
    table.raw_commit(b'{"add":7}\n')
    with pytest.raises(CorruptLogError):
        await growth.advance(0.0)


async def test_the_log_is_counted_and_a_checkpoint_found(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    for _ in range(4):
        table.append(rows(1))
    tally = LogTally(make_reader(table))
    assert await tally.refresh(0.0)
    assert (tally.checkpoint_version, tally.commits, tally.files) == (None, 4, 4)
    assert tally.bytes == sum(path.stat().st_size for path in table.log.glob("*.json"))
    table.checkpoint()
    table.append(rows(1))
    reader = make_reader(table)
    newest = await reader.commit_file(4)
    assert newest is not None
    assert not await tally.refresh(RECENT_SECONDS / 2)
    tally.advance(newest)
    assert (tally.commits, tally.files) == (5, 5)
    assert tally.due_in(10.0) == RECENT_SECONDS - 10
    assert await tally.refresh(RECENT_SECONDS)
    assert (tally.checkpoint_version, tally.commits, tally.files) == (3, 1, 6)
    assert tally.bytes == table.commit_path(4).stat().st_size
    assert tally.due_in(RECENT_SECONDS) is None


async def test_cleanup_of_old_log_files_is_seen_by_a_whole_listing(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    for _ in range(4):
        table.append(rows(1))
    table.checkpoint()
    tally = LogTally(make_reader(table))
    await tally.refresh(0.0)
    assert tally.files == 5
    for version in range(3):
        table.commit_path(version).unlink()
    table.append(rows(1))
    await tally.refresh(RECENT_SECONDS)
    assert tally.files == 6
    await tally.refresh(WHOLE_SECONDS)
    assert (tally.files, tally.commits) == (3, 1)


async def test_a_commit_the_listing_has_seen_is_not_counted_twice(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append(rows(1))
    reader = make_reader(table)
    tally = LogTally(reader)
    await tally.refresh(0.0)
    file = await reader.commit_file(0)
    assert file is not None
    tally.advance(file)
    assert (tally.commits, tally.is_settled) == (1, True)


def cache_of(table: TableBuilder, *, with_files: bool = True) -> SnapshotCache:
    reader = LogReader(LocalStore(), str(table.folder), torn_wait_seconds=0)
    return SnapshotCache(reader, with_files=with_files)


@pytest.mark.parametrize("with_files", [True, False])
async def test_the_snapshot_moves_one_commit_at_a_time(tmp_path: Path, with_files: bool) -> None:
    table = write_history(tmp_path)
    cache = cache_of(table, with_files=with_files)
    assert_is(await cache.open(2), table.state(2), with_files=with_files)
    for version in range(3, HEAD + 1):
        found = await cache.advance()
        assert found is not None
        assert found.commit.version == version
        assert_is(cache.snapshot, table.state(version), with_files=with_files)
    assert await cache.advance() is None
    table.commit(add("later"))
    assert await cache.advance() is not None
    assert_is(cache.snapshot, table.state(), with_files=with_files)


async def test_without_a_new_commit_one_request_is_made(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    store = MeteredStore(LocalStore())
    cache = SnapshotCache(LogReader(store, str(table.folder)))
    await cache.open()
    before = store.total
    assert await cache.advance() is None
    assert store.total == before + 1


async def test_a_cache_must_be_opened_first(tmp_path: Path) -> None:
    with pytest.raises(BugError, match="before it was opened"):
        _ = cache_of(TableBuilder(tmp_path)).snapshot


@pytest.mark.parametrize("again", [1, 2])
async def test_a_refused_protocol_leaves_the_snapshot_whole_however_often_it_is_met(
    tmp_path: Path, again: int
) -> None:
    table = write_history(tmp_path)
    cache = cache_of(table)
    await cache.open()
    table.commit(add("x"), table.protocol(readerFeatures=["newThing"]))
    for _ in range(again):
        with pytest.raises(UnsupportedFeatureError, match="newThing"):
            await cache.advance()
        assert_is(cache.snapshot, table.state(HEAD))
        assert await live_files(cache.reader, cache.snapshot)


async def test_a_damaged_commit_leaves_the_snapshot_whole_until_it_is_mended(
    tmp_path: Path,
) -> None:
    table = write_history(tmp_path)
    cache = cache_of(table)
    await cache.open()
    for body in (b"x\n", b'{"add":{"path":"x"', b""):
        table.raw_commit(body, version=HEAD + 1)
        with pytest.raises(CorruptLogError):
            await cache.advance()
        assert_is(cache.snapshot, table.state(HEAD))
    table.commit(PROTOCOL, add("x"), version=HEAD + 1)
    assert await cache.advance() is not None
    assert_is(cache.snapshot, table.state())
