"""Hints that go to another process and come back as seen, whichever of the two dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tailerd.watchers import relay as relay_module
from tailerd.watchers.base import StorageEvent
from tailerd.watchers.relay import NotificationForwarder
from tailerd.watchers.relayed import RelayedWatcher, hints_in, leave_hint
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry

LOG = "lake/orders/_delta_log"
PATIENCE_SECONDS = 5.0


class Teller:
    """A watcher that says what it is told to, and hears of looks.

    Attributes:
        untold: Of each look it heard of, whether it found what nobody had told of.
    """

    def __init__(self) -> None:
        self._said: asyncio.Queue[StorageEvent] = asyncio.Queue()
        self.untold: list[bool] = []

    def looked(self, folder: str, is_untold: bool) -> None:
        assert folder == LOG
        self.untold.append(is_untold)

    def say(self, event: StorageEvent) -> None:
        self._said.put_nowait(event)

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        while True:
            yield await self._said.get()


async def comes_true(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.01)


@asynccontextmanager
async def relaying(watcher: Teller) -> AsyncGenerator[NotificationForwarder, None]:
    board = WakeupRegistry()
    relay = NotificationForwarder(board)
    relay.set_tables({"orders": LOG})
    running = asyncio.create_task(board.run([watcher]))
    try:
        yield relay
    finally:
        running.cancel()
        await asyncio.wait({running})
        await relay.aclose()
        assert not relay.root.exists()


@asynccontextmanager
async def follower(folder: Path) -> AsyncGenerator[Wakeup, None]:
    """The other process's side: its wakeup."""
    board = WakeupRegistry()
    wakeup = board.subscribe(LOG)
    running = asyncio.create_task(board.run([RelayedWatcher({str(folder): LOG})]))
    try:
        yield wakeup
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_hint_counts_as_seen_when_the_other_process_has_looked() -> None:
    seen: list[int] = []
    watcher = Teller()
    async with relaying(watcher) as relay, follower(relay.root / "orders") as wakeup:
        watcher.say(StorageEvent(LOG, 7, partial(seen.append, 7)))
        look = wakeup.begin_poll()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while look.version is None:
                await wakeup.wait()
                look = wakeup.begin_poll()
        assert look.version == 7
        await asyncio.sleep(2 * relay_module.LOOK_SECONDS)
        assert seen == []
        wakeup.end_poll(look)
        await comes_true(lambda: seen == [7])
        assert hints_in(relay.root / "orders") == {}


async def test_commits_that_were_found_without_a_hint_of_them_are_told_back() -> None:
    watcher = Teller()
    async with relaying(watcher) as relay, follower(relay.root / "orders") as wakeup:
        await comes_true((relay.root / "orders").exists)
        wakeup.end_poll(wakeup.begin_poll())
        for version, is_news in ((None, True), (None, False), (8, True)):
            heard = len(watcher.untold)
            watcher.say(StorageEvent(LOG, version, None if version is None else lambda: None))
            while len(watcher.untold) == heard:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await wakeup.wait()
                look = wakeup.begin_poll()
                wakeup.end_poll(look, is_news=is_news and look.count > 0)
                await asyncio.sleep(2 * relay_module.LOOK_SECONDS)
        assert watcher.untold == [True, False, False]


async def test_what_a_process_that_died_was_told_is_told_to_the_next() -> None:
    watcher = Teller()
    async with relaying(watcher) as relay:
        folder = relay.root / "orders"
        watcher.say(StorageEvent(LOG, 7, lambda: None))
        watcher.say(StorageEvent(LOG))
        await comes_true(lambda: [*hints_in(folder).values()] == [7, None])
        for _ in range(2):
            async with aclosing(RelayedWatcher({str(folder): LOG}).events()) as events:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    found = [await anext(events), await anext(events)]
            assert [(event.folder, event.version) for event in found] == [(LOG, 7), (LOG, None)]


async def test_a_hint_that_somebody_else_has_taken_wakes_all_the_same(tmp_path: Path) -> None:
    async with aclosing(RelayedWatcher({str(tmp_path): LOG}).events()) as events:
        async with asyncio.timeout(PATIENCE_SECONDS):
            # What may have come before anybody watched.
            assert (await anext(events)).on_seen is None
            leave_hint(tmp_path, 1, 7)
            event = await anext(events)
        assert (event.folder, event.version) == (LOG, 7)


async def test_tables_that_are_named_no_more_hold_up_nothing_and_lose_their_folder() -> None:
    seen: list[int] = []
    watcher = Teller()
    async with relaying(watcher) as relay:
        watcher.say(StorageEvent(LOG, 7, partial(seen.append, 7)))
        await comes_true(lambda: len(hints_in(relay.root / "orders")) == 1)
        relay.set_tables({})
        assert seen == [7]
        await comes_true(lambda: not (relay.root / "orders").exists())
        relay.set_tables({"orders": LOG})
        await comes_true((relay.root / "orders").exists)


async def test_of_a_table_nobody_looks_at_the_oldest_hints_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_MOST_UNSEEN", 3)
    seen: list[int] = []
    watcher = Teller()
    async with relaying(watcher) as relay:
        for version in range(5):
            watcher.say(StorageEvent(LOG, version, partial(seen.append, version)))
        await comes_true(lambda: seen == [0, 1])
        await comes_true(lambda: [*hints_in(relay.root / "orders").values()] == [2, 3, 4])


async def test_a_folder_that_was_cleaned_away_is_made_again() -> None:
    watcher = Teller()
    async with relaying(watcher) as relay:
        folder = relay.root / "orders"
        await comes_true(folder.exists)
        folder.rmdir()
        watcher.say(StorageEvent(LOG, 7, lambda: None))
        await comes_true(lambda: [*hints_in(folder).values()] == [7])


def test_a_file_that_is_no_hint_of_ours_is_one_without_a_version(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000001.json").write_text("ⅷ")
    (tmp_path / "00000000000000000002.json").write_text('{"version": 3}')
    (tmp_path / "3.tmp").write_text("3")
    assert [*hints_in(tmp_path).values()] == [None, None]
    assert hints_in(tmp_path / "missing") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems promise nothing")
async def test_a_folder_is_covered_while_its_hints_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    watcher = RelayedWatcher({str(folder): LOG})
    async with aclosing(watcher.events()) as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        # Nobody has said that he leaves hints: the folder is not there.
        assert not watcher.covers(LOG)
        folder.mkdir()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert watcher.covers(LOG)
        folder.rmdir()
        await comes_true(lambda: not watcher.covers(LOG))
