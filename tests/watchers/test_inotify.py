"""What only inotify can do, and what it says of itself."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest

from tailerd.watchers.inotify import InotifyWatcher
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

RECHECK_SECONDS = 0.05


def name_log(folder: Path, name: str) -> str:
    log = folder / name / "_delta_log"
    log.mkdir(parents=True)
    return str(log)


def commit(folder: str) -> None:
    Path(folder, f"{0:020}.json").write_text("{}")


def make_watcher(*folders: str) -> InotifyWatcher:
    return InotifyWatcher(folders, recheck_seconds=RECHECK_SECONDS)


@asynccontextmanager
async def heard(watcher: InotifyWatcher) -> AsyncIterator[asyncio.Queue[str]]:
    """Give the folders that are hinted, from when the first hints are over."""
    hints: asyncio.Queue[str] = asyncio.Queue()

    async def listen() -> None:
        async with aclosing(watcher.events()) as events:
            async for event in events:
                hints.put_nowait(event.folder)

    listening = asyncio.create_task(listen())
    try:
        await quiet(hints)
        yield hints
    finally:
        listening.cancel()
        await asyncio.wait({listening})


async def quiet(hints: asyncio.Queue[str]) -> list[str]:
    """Return the hints that come until none comes for a while."""
    came: list[str] = []
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(8 * RECHECK_SECONDS):
                came.append(await hints.get())
    return came


async def one(hints: asyncio.Queue[str]) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await hints.get()


async def test_a_commit_that_is_linked_into_place_is_hinted_once(tmp_path: Path) -> None:
    folder = name_log(tmp_path, "a")
    complete = tmp_path / "complete"
    complete.write_text("{}")
    async with heard(make_watcher(folder)) as hints:
        os.link(complete, Path(folder, f"{0:020}.json"))
        assert await quiet(hints) == [folder]


async def test_a_commit_that_is_written_in_place_is_hinted_when_it_is_closed(
    tmp_path: Path,
) -> None:
    folder = name_log(tmp_path, "a")
    async with heard(make_watcher(folder)) as hints:
        file = os.open(f"{folder}/{0:020}.json", os.O_WRONLY | os.O_CREAT)
        assert await quiet(hints) == []
        os.write(file, b"{}")
        os.close(file)
        assert await quiet(hints) == [folder]


async def test_a_log_whose_table_was_moved_away_and_replaced_is_hinted_and_followed(
    tmp_path: Path,
) -> None:
    folder = name_log(tmp_path, "a")
    watcher = make_watcher(folder)
    async with heard(watcher) as hints:
        (tmp_path / "a").rename(tmp_path / "old")
        name_log(tmp_path, "a")
        assert set(await quiet(hints)) == {folder}
        commit(f"{tmp_path}/old/_delta_log")
        assert await quiet(hints) == []
        commit(folder)
        assert await one(hints) == folder


async def test_two_names_of_one_folder_are_both_hinted(tmp_path: Path) -> None:
    folder = name_log(tmp_path, "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    other = str(tmp_path / "b" / "_delta_log")
    async with heard(make_watcher(folder, other)) as hints:
        commit(folder)
        assert sorted(await quiet(hints)) == [folder, other]


async def test_it_covers_folders_that_are_there_and_only_while_it_listens(tmp_path: Path) -> None:
    folder, missing = name_log(tmp_path, "a"), str(tmp_path / "nowhere" / "_delta_log")
    watcher = make_watcher(folder, missing)
    assert not watcher.covers(folder)
    async with heard(watcher) as hints:
        assert watcher.covers(folder)
        assert not watcher.covers(missing)
        shutil.rmtree(tmp_path / "a")
        assert await one(hints) == folder
        assert not watcher.covers(folder)
        name_log(tmp_path, "a")
        assert await one(hints) == folder
        assert watcher.covers(folder)
    assert not watcher.covers(folder)


async def test_a_kernel_that_refuses_is_reported_once_and_asked_again(tmp_path: Path) -> None:
    folder = name_log(tmp_path, "a")
    reports: list[tuple[str, str]] = []
    watcher = InotifyWatcher(
        [folder],
        recheck_seconds=RECHECK_SECONDS,
        on_unavailable=lambda path, reason: reports.append((path, reason)),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        async with heard(watcher) as hints:
            assert [path for path, _ in reports] == [folder]
            assert "limit" in reports[0][1]
            assert not watcher.covers(folder)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await one(hints) == folder
            assert watcher.covers(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(reports) == 1
