"""A followed table is replaced by another, or a commit that was read is changed afterwards.

Sizes and times of files prove nothing: they agree by chance, and copies keep them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tailerd.changefeed.limits import DEFAULT_READ_LIMIT
from tailerd.changefeed.offset import Offset
from tailerd.clock import SystemClock
from tailerd.errors import CommitChangedError, TableRecreatedError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.log_continuity import COPY_SECONDS
from tailerd.formats.versioned_source import VersionedSource
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    read_log,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta
from tests.waiting import eventually

pytestmark = pytest.mark.attack


VERSIONS = 5
OURS, OTHER = (f"5f1d0f6e-7a11-4e2b-9c1d-00000000000{digit}" for digit in "12")


def make_table(folder: Path, table_id: str = OURS, versions: int = VERSIONS) -> TableBuilder:
    """A table whose log differs from that of another only in the id."""
    table = TableBuilder(folder, table_id=table_id)
    for number in range(versions):
        table.append([{"id": number, "name": "a"}])
    return table


def replaced(table: TableBuilder, versions: int = VERSIONS) -> TableBuilder:
    """Put another table in the place of one; what was its newest commit looks the same."""
    before = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(table.log.iterdir())]
    shutil.rmtree(table.folder)
    other = make_table(table.folder, OTHER, versions)
    after = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(other.log.iterdir())]
    assert after[:VERSIONS] == before
    return other


async def poll(source: VersionedSource, at: Offset) -> Offset:
    source.notify(None)
    return await source.latest_offset(at, DEFAULT_READ_LIMIT)


def remote(store: ObjectStore) -> FaultyStore:
    """A store without folder marks, and not said to be near."""
    faulty = FaultyStore(store)
    faulty.scheme = "remote"
    return faulty


@pytest.mark.parametrize("versions", [VERSIONS, VERSIONS + 1], ids=["as_long", "longer"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "remote"])
async def test_another_table_with_the_same_sizes_and_times_is_no_continuation(
    tmp_path: Path, is_remote: bool, versions: int
) -> None:
    table = make_table(tmp_path / "t")
    clock = SimClock()
    source = await open_delta(
        str(table.folder), OpenRequest(clock=clock, wrap_store=remote if is_remote else None)
    )
    at = await source.initial_offset("latest")
    assert await poll(source, at) == at
    replaced(table, versions)
    # So long that the log is listed again wherever a listing is a request.
    await clock.advance(700 if versions == VERSIONS else VERSIONS * COPY_SECONDS * 2)
    with pytest.raises(TableRecreatedError, match=OTHER):
        await poll(source, at)


async def test_another_table_in_memory_is_no_continuation(tmp_path: Path) -> None:
    table, other = make_table(tmp_path / "a"), make_table(tmp_path / "b", OTHER)
    stores, clock = Stores(), SimClock()
    store = stores.memory("replaced")

    async def put(built: TableBuilder) -> None:
        for path in built.log.iterdir():
            await store.put(f"/t/_delta_log/{path.name}", path.read_bytes())
            store.set_mtime(f"/t/_delta_log/{path.name}", 1)

    await put(table)
    source = await open_delta("memory://replaced/t", OpenRequest(clock=clock), stores=stores)
    at = await source.initial_offset("latest")
    assert await poll(source, at) == at
    await put(other)
    await clock.advance(700)
    with pytest.raises(TableRecreatedError):
        await poll(source, at)


@pytest.mark.parametrize("is_read", [True, False], ids=["delivered", "of_the_snapshot"])
async def test_a_commit_that_grows_after_it_was_read_is_an_error_that_names_it(
    tmp_path: Path, is_read: bool
) -> None:
    table = make_table(tmp_path / "t")
    source = await open_delta(str(table.folder), OpenRequest(clock=SystemClock()))
    at = await source.initial_offset(str(VERSIONS - 1) if is_read else "latest")
    if is_read:
        at = await poll(source, at)
    assert await poll(source, at) == at
    path = table.commit_path(VERSIONS - 1)
    with path.open("ab") as file:
        file.write(json.dumps(table.data_file([{"id": 9, "name": "late"}])).encode() + b"\n")
    with pytest.raises(CommitChangedError, match=f"Version {VERSIONS - 1} .*{path.name}"):
        await poll(source, at)


async def test_a_commit_that_is_edited_under_its_size_and_time_is_noticed_with_the_next(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path / "t")
    source = await open_delta(str(table.folder), OpenRequest(clock=SystemClock()))
    at = await poll(source, await source.initial_offset(str(VERSIONS - 1)))
    path = table.commit_path(VERSIONS - 1)
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"WRITE", b"wrote"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    table.append([{"id": 9, "name": "a"}])
    with pytest.raises(CommitChangedError, match=path.name):
        await poll(source, at)


async def test_a_log_that_was_copied_goes_on(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    source = await open_delta(str(table.folder), OpenRequest(clock=SystemClock()))
    at = await poll(source, await source.initial_offset("1"))
    # Other files and other times, the same content.
    copy = tmp_path / "copy"
    await asyncio.to_thread(shutil.copytree, table.log, copy, copy_function=shutil.copy)
    shutil.rmtree(table.log)
    copy.rename(table.log)
    assert await poll(source, at) == at
    table.append([{"id": 9, "name": "a"}])
    assert (await poll(source, at)).version == VERSIONS + 1


@pytest.mark.full
def test_a_daemon_stops_at_another_table_of_the_same_sizes_and_times(tmp_path: Path) -> None:
    table, out = make_table(tmp_path / "t"), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(table.folder, out))
    with daemon(config) as process:
        eventually(lambda: out.exists() and len(delivered_ids(out)) == VERSIONS)
        aside = make_table(tmp_path / "aside", OTHER, VERSIONS + 1)
        table.folder.rename(tmp_path / "gone")
        aside.folder.rename(table.folder)
        eventually(lambda: '"table_recreated"' in read_log(config))
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    assert sorted(delivered_ids(out)) == list(range(VERSIONS))
