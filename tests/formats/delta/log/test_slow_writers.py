"""Commits written in place, slowly, with pauses at line ends.

Such a commit is one when its writer has closed it, or, where nobody can tell, when it stood still
over two looks. Writers that create commits atomically pay nothing for that.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.limits import DEFAULT_READ_LIMIT
from tailerd.errors import TornCommitError
from tailerd.formats.delta.log.log_reader import STILL_SECONDS, LogReader
from tailerd.formats.versioned_source import VersionedSource
from tailerd.storage import posix_files
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.metered import MeteredStore
from tailerd.storage.stores import Stores
from tailerd.watchers.base import StorageEvent
from tailerd.watchers.inotify import InotifyWatcher
from tests.integration.daemon.running import (
    TAILERD,
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


FILES, FIRST = 17, 3
IDS = list(range(1, FILES + 1))


class SlowWriter:
    """Writes version 1 in place: some whole lines, and the rest when told to."""

    def __init__(self, table: TableBuilder) -> None:
        adds = [add for n in IDS for add in table.data_files([{"id": n, "name": "x"}])]
        lines = [json.dumps(action).encode() + b"\n" for action in adds]
        self.path = table.commit_path(1)
        self._file = self.path.open("wb", buffering=0)
        self._file.write(b"".join(lines[:FIRST]))
        self._rest = lines[FIRST:]

    def write_on(self) -> None:
        self._file.write(self._rest.pop(0))

    def finish(self) -> None:
        self._file.write(b"".join(self._rest))
        self._file.close()


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "t", start_ms=None)
    table.append([{"id": 0, "name": "x"}])
    return table


@pytest.fixture
def unknown_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another user: the system does not tell us who has them open."""
    monkeypatch.setattr(posix_files, "_is_open_for_writing", lambda _: None)


async def followed(table: TableBuilder) -> int:
    """Return how many files a pipeline that follows the table is given of version 1."""
    source = await open_delta(str(table.folder))
    start = await source.initial_offset("1")
    return await planned(source, start)


async def planned(source: VersionedSource, start: Any) -> int:
    end = await source.latest_offset(start, DEFAULT_READ_LIMIT)
    return sum([len(group.tasks) async for group in source.plan(start, end)])


async def read_at_once(table: TableBuilder) -> int:
    """Return how many files of version 1 a snapshot has."""
    snapshot = await LogReader.at(str(table.folder)).open()
    return (snapshot.num_files or 0) - 1


@pytest.mark.parametrize("read", [followed, read_at_once])
@pytest.mark.usefixtures("unknown_writers")
@pytest.mark.parametrize("pause_seconds", [0.3, STILL_SECONDS - 0.2])
async def test_a_commit_that_still_grows_is_given_time_where_nobody_knows_its_writer(
    table: TableBuilder, read: Callable[[TableBuilder], Any], pause_seconds: float
) -> None:
    writer = SlowWriter(table)
    reading = asyncio.ensure_future(read(table))
    await asyncio.sleep(pause_seconds)
    writer.finish()
    assert await reading == FILES


@pytest.mark.parametrize("read", [followed, read_at_once])
async def test_a_commit_that_its_writer_has_open_is_awaited(
    table: TableBuilder, read: Callable[[TableBuilder], Any]
) -> None:
    writer = SlowWriter(table)
    reading = asyncio.ensure_future(read(table))
    await asyncio.sleep(0.3)
    writer.write_on()
    # Longer than it would have to stand still where nobody could tell.
    await asyncio.sleep(STILL_SECONDS + 0.1)
    writer.finish()
    assert await reading == FILES


@pytest.mark.parametrize("wait_seconds", [0.1, 2.0])
async def test_a_pipeline_that_looks_now_and_then_finds_all_of_it(
    table: TableBuilder, wait_seconds: float
) -> None:
    source = await open_delta(str(table.folder))
    start = await source.initial_offset("latest")
    writer = SlowWriter(table)
    before = [writer.path.stat().st_size]
    looking = asyncio.ensure_future(planned(source, start))
    await asyncio.sleep(wait_seconds / 4)
    writer.finish()
    assert writer.path.stat().st_size > before[0]
    assert await looking == FILES


async def test_a_commit_that_stays_open_is_an_error_that_says_so(table: TableBuilder) -> None:
    writer = SlowWriter(table)
    with pytest.raises(TornCommitError, match=f"{writer.path.name} is still being written"):
        await LogReader(LocalStore(), str(table.folder), torn_wait_seconds=0.1).open()
    writer.finish()


PROGRAM = """
    import sys
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(3):
            file.write(sys.stdin.buffer.readline())
        print("begun", flush=True)
        file.write(sys.stdin.buffer.read())
"""


class SlowProcess:
    """Another process that writes version 1, the rest of it when told to."""

    def __init__(self, table: TableBuilder) -> None:
        adds = [add for n in IDS for add in table.data_files([{"id": n, "name": "x"}])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), table.commit_path(1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        lines = [json.dumps(add).encode() + b"\n" for add in adds]
        self._rest = lines[FIRST:]
        self.process.stdin.write(b"".join(lines[:FIRST]))
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"begun\n"

    def finish(self) -> None:
        self.process.communicate(b"".join(self._rest), timeout=10)
        assert self.process.returncode == 0


@pytest.mark.full
def test_a_daemon_that_follows_delivers_all_of_a_slow_commit(
    tmp_path: Path, table: TableBuilder
) -> None:
    config = write_config(tmp_path, orders=file_table(table.folder, out := tmp_path / "out"))
    with daemon(config) as process:
        eventually(lambda: out.exists() and delivered_ids(out) == [0])
        writer = SlowProcess(table)
        time.sleep(0.5)
        assert delivered_ids(out) == [0]
        writer.finish()
        eventually(lambda: len(delivered_ids(out)) > 1)
        assert sorted(delivered_ids(out)) == [0, *IDS]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.full
@pytest.mark.parametrize("start", ["snapshot", "0"])
def test_a_run_that_ends_at_the_head_delivers_all_of_a_slow_commit(
    tmp_path: Path, table: TableBuilder, start: str
) -> None:
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(table.folder, out, **{"from": start}))
    writer = SlowProcess(table)
    with daemon(config, "--once") as process:
        eventually(
            lambda: "is still being written" in read_log(config) or process.poll() is not None
        )
        writer.finish()
        assert process.wait(20) == 0, read_log(config)
    assert sorted(delivered_ids(out)) == [0, *IDS]


@pytest.mark.full
def test_tail_once_shows_nothing_of_a_commit_that_is_not_finished(table: TableBuilder) -> None:
    writer = SlowProcess(table)
    tail = [*TAILERD, "tail", str(table.folder), "--from", "1", "--once", "--format", "jsonl"]
    done = subprocess.run(tail, capture_output=True, text=True, check=False, timeout=30)
    writer.finish()
    assert (done.returncode, done.stdout) == (3, "")
    assert "is still being written" in done.stderr
    done = subprocess.run(tail, capture_output=True, text=True, check=False, timeout=30)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == IDS


def by_rename(path: Path, body: bytes) -> None:
    temporary = path.with_name(".temporary")
    temporary.write_bytes(body)
    temporary.rename(path)


def by_link(path: Path, body: bytes) -> None:
    temporary = path.with_name(".temporary")
    temporary.write_bytes(body)
    os.link(temporary, path)
    temporary.unlink()


def in_place(path: Path, body: bytes) -> None:
    path.write_bytes(body)


@pytest.mark.parametrize("write", [by_rename, by_link, in_place])
async def test_a_commit_that_is_whole_costs_no_second_look_and_no_time(
    table: TableBuilder, write: Callable[[Path, bytes], None]
) -> None:
    store = MeteredStore(LocalStore())
    reader = LogReader(store, str(table.folder))
    await reader.open()
    store.reset()
    [add] = table.data_files([{"id": 1, "name": "x"}])
    write(table.commit_path(1), json.dumps(add).encode())
    began = time.monotonic()
    assert (await reader.find_commit(1)) is not None
    assert time.monotonic() - began < STILL_SECONDS / 2
    assert store.total == store.requests["get"] == 1


@pytest.mark.usefixtures("unknown_writers")
@pytest.mark.parametrize("write", [by_rename, by_link])
async def test_the_kernel_tells_at_once_of_commits_of_other_users_that_appear_whole(
    table: TableBuilder, write: Callable[[Path, bytes], None]
) -> None:
    async with asyncio.TaskGroup() as group:
        stores = Stores()
        watcher = InotifyWatcher([str(table.log)], finished=stores.local.finished)
        hints = watcher.events()
        # The folder itself, which is watched from now on.
        await anext(hints)
        [add] = table.data_files([{"id": 1, "name": "x"}])
        hearing = group.create_task(_next(hints))
        write(table.commit_path(1), json.dumps(add).encode())
        began = time.monotonic()
        await hearing
        reader = LogReader.at(str(table.folder), stores=stores)
        assert (await reader.find_commit(1)) is not None
        assert time.monotonic() - began < STILL_SECONDS / 2
        await hints.aclose()


@pytest.mark.usefixtures("unknown_writers")
async def test_no_kernel_event_is_trusted_for_a_commit_written_in_place(
    table: TableBuilder,
) -> None:
    async with asyncio.TaskGroup() as group:
        stores = Stores()
        hints = InotifyWatcher([str(table.log)], finished=stores.local.finished).events()
        await anext(hints)
        hearing = group.create_task(_next(hints))
        writer = SlowWriter(table)
        reading = group.create_task(LogReader.at(str(table.folder), stores=stores).find_commit(1))
        await asyncio.sleep(STILL_SECONDS / 2)
        assert not reading.done()
        writer.finish()
        await hearing
        found = await reading
        assert found is not None
        assert found.commit.added.files == FILES
        await hints.aclose()


async def _next(hints: AsyncGenerator[StorageEvent, None]) -> None:
    await anext(hints)


@pytest.mark.usefixtures("unknown_writers")
async def test_a_commit_written_long_ago_is_whole_whoever_wrote_it(table: TableBuilder) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(table.commit_path(0), (an_hour_ago, an_hour_ago))
    began = time.monotonic()
    await LogReader.at(str(table.folder)).open()
    assert time.monotonic() - began < STILL_SECONDS / 2


async def test_a_store_whose_files_appear_whole_lets_nobody_wait(table: TableBuilder) -> None:
    store = MemoryStore()
    body = table.commit_path(0).read_bytes()
    await store.put("/t/_delta_log/00000000000000000000.json", body)
    began = time.monotonic()
    assert (await LogReader(store, "/t").open()).version == 0
    assert time.monotonic() - began < STILL_SECONDS / 2


def test_being_asked_whether_they_write_does_not_disturb_writers(tmp_path: Path) -> None:
    path, ends = tmp_path / "x", time.monotonic() + 0.5
    path.write_bytes(b"x")
    program = (
        "import sys, time\nend = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: open(sys.argv[1], 'ab').close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, path]) as writer:
        while time.monotonic() < ends:
            assert posix_files.stat_finished(str(path))[1] is not None
        assert writer.wait(10) == 0
