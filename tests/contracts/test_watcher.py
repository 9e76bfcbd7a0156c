"""Every clause of `Watcher`, against every watcher of this machine's files."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from tailerd.clock import SystemClock
from tailerd.watchers.base import StorageEvent, Watcher
from tailerd.watchers.inotify import InotifyWatcher
from tailerd.watchers.local import LocalWatcher
from tailerd.watchers.poll import PollWatcher
from tailerd.watchers.wakeups import WakeupRegistry
from tests.waiting import PATIENCE_SECONDS

WATCHERS: dict[str, Callable[[list[str]], Watcher]] = {
    "poll": lambda folders: PollWatcher(folders, interval_seconds=0.05, clock=SystemClock()),
    "local": lambda folders: LocalWatcher(folders, recheck_seconds=0.1),
    "inotify": lambda folders: InotifyWatcher(folders, recheck_seconds=0.1),
}


@pytest.fixture(params=WATCHERS)
def make(request: pytest.FixtureRequest) -> Callable[[list[str]], Watcher]:
    return WATCHERS[request.param]


def name_log(folder: Path, name: str) -> str:
    log = folder / name / "_delta_log"
    log.mkdir(parents=True)
    return str(log)


def commit(log: str, version: int) -> None:
    Path(log, f"{version:020}.json").write_text("{}")


def do_all_but_commit(log: Path) -> None:
    (log / ".00000000000000000001.json.tmp").write_text("{}")
    (log / "_last_checkpoint").write_text("{}")
    (log / "00000000000000000001.checkpoint.parquet").write_text("")
    (log / f"{0:020}.json").unlink()


async def hint_for(events: AsyncGenerator[StorageEvent, None], folder: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for event in events:
            if event.folder == folder:
                return


async def settle(events: AsyncGenerator[StorageEvent, None]) -> asyncio.Task[StorageEvent]:
    """Pass over the first hints; return the wait for the next one."""
    while True:
        waiting = asyncio.ensure_future(anext(events))
        done, _ = await asyncio.wait({waiting}, timeout=0.4)
        if not done:
            return waiting


async def test_a_commit_is_hinted_for_its_own_folder(
    make: Callable[[list[str]], Watcher], tmp_path: Path
) -> None:
    logs = [name_log(tmp_path, "a"), name_log(tmp_path, "b")]
    async with aclosing(make(logs).events()) as events:
        for version in range(3):
            for log in logs:
                commit(log, version)
                await hint_for(events, log)


async def test_a_folder_that_appears_later_is_hinted(
    make: Callable[[list[str]], Watcher], tmp_path: Path
) -> None:
    folder = str(tmp_path / "later" / "_delta_log")
    async with aclosing(make([folder]).events()) as events:
        waiting = asyncio.create_task(hint_for(events, folder))
        await asyncio.sleep(0.1)
        commit(name_log(tmp_path, "later"), 0)
        await waiting


async def test_a_folder_that_is_deleted_and_made_again_is_hinted_again(
    make: Callable[[list[str]], Watcher], tmp_path: Path
) -> None:
    folder = name_log(tmp_path, "a")
    async with aclosing(make([folder]).events()) as events:
        commit(folder, 0)
        await hint_for(events, folder)
        shutil.rmtree(folder)
        waiting = asyncio.create_task(hint_for(events, folder))
        await asyncio.sleep(0.3)
        commit(name_log(tmp_path, "a"), 0)
        await waiting


async def test_a_cancelled_wait_ends_promptly(
    make: Callable[[list[str]], Watcher], tmp_path: Path
) -> None:
    folder = name_log(tmp_path, "a")

    async def listen() -> None:
        async with aclosing(make([folder]).events()) as events:
            async for _ in events:
                pass

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.3)
    began = time.monotonic()
    listening.cancel()
    await asyncio.wait({listening})
    assert listening.cancelled()
    assert time.monotonic() - began < 0.5


async def test_temporary_files_checkpoints_and_deletions_are_no_hints(tmp_path: Path) -> None:
    folder = name_log(tmp_path, "a")
    commit(folder, 0)
    async with aclosing(LocalWatcher([folder], recheck_seconds=0.1).events()) as events:
        waiting = await settle(events)
        do_all_but_commit(Path(folder))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        commit(folder, 1)
        assert (await waiting).folder == folder


async def test_a_commit_wakes_the_local_watcher_within_milliseconds(tmp_path: Path) -> None:
    folder = name_log(tmp_path, "a")
    times = []
    async with aclosing(LocalWatcher([folder]).events()) as events:
        waiting = await settle(events)
        for version in range(20):
            began = time.monotonic()
            commit(folder, version)
            await waiting
            times.append(time.monotonic() - began)
            waiting = await settle_quickly(events)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert sorted(times)[len(times) // 2] < 0.1


async def settle_quickly(
    events: AsyncGenerator[StorageEvent, None],
) -> asyncio.Task[StorageEvent]:
    while True:
        waiting = asyncio.ensure_future(anext(events))
        done, _ = await asyncio.wait({waiting}, timeout=0.03)
        if not done:
            return waiting


async def test_no_folder_at_all_is_survived(tmp_path: Path) -> None:
    reports: list[str] = []
    watcher = LocalWatcher(
        [f"{tmp_path}/nowhere"],
        recheck_seconds=0.02,
        on_unavailable=lambda path, reason: reports.append(reason),
    )
    async with aclosing(watcher.events()) as events:
        waiting = asyncio.ensure_future(anext(events))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        waiting.cancel()
        await asyncio.wait({waiting})
    assert reports == []


async def test_hints_of_all_watchers_reach_the_bell_of_their_folder(tmp_path: Path) -> None:
    a, b = name_log(tmp_path, "a"), name_log(tmp_path, "b")
    board = WakeupRegistry()
    bell_a, bell_b = board.subscribe(a), board.subscribe(b)
    polling = PollWatcher([b], interval_seconds=3600, clock=SystemClock())
    running = asyncio.create_task(board.run([LocalWatcher([a]), polling]))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await bell_a.wait()
        commit(a, 0)
        await bell_a.wait()
    silent = asyncio.ensure_future(bell_b.wait())
    done, _ = await asyncio.wait({silent}, timeout=0.05)
    assert not done
    silent.cancel()
    running.cancel()
    await asyncio.wait({running, silent})
