from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.errors import BugError, CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.snapshot_cache import SnapshotCache
from tailerd.storage.local import LocalStore
from tailerd.storage.metered import MeteredStore
from tests.formats.delta.histories import HEAD, assert_is, live_files, write_history
from tests.formats.delta.log_bodies import PROTOCOL, add
from tests.tables.builder import TableBuilder


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
