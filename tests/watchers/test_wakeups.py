"""Events are let go of once everybody concerned has looked, and no ring is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from tailerd.watchers.base import StorageEvent
from tailerd.watchers.wakeups import Wakeup, WakeupRegistry
from tests.doubles.scripted_watcher import ScriptedWatcher
from tests.waiting import PATIENCE_SECONDS


class Told(ScriptedWatcher):
    """Tells of versions, and notes which were seen."""

    def __init__(self, *versions: int) -> None:
        super().__init__()
        self.versions = versions
        self.seen: list[int] = []

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        for version in self.versions:
            yield StorageEvent("a", version, partial(self.seen.append, version))
        await asyncio.Event().wait()


async def listen(board: WakeupRegistry, watcher: Told) -> None:
    running = asyncio.create_task(board.run([watcher]))
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})


async def test_an_event_is_seen_when_a_look_that_began_after_it_has_ended() -> None:
    board, watcher = WakeupRegistry(), Told(4, 5)
    wakeup = board.subscribe("a")
    early = wakeup.begin_poll()
    await listen(board, watcher)
    wakeup.end_poll(early)
    assert watcher.seen == []
    await asyncio.wait_for(wakeup.wait(), PATIENCE_SECONDS)
    poll = wakeup.begin_poll()
    assert (poll.version, watcher.seen) == (5, [])
    wakeup.end_poll(poll)
    assert watcher.seen == [4, 5]


async def test_a_look_that_failed_is_not_seen_until_the_next_one() -> None:
    board, watcher = WakeupRegistry(), Told(4)
    wakeup = board.subscribe("a")
    await listen(board, watcher)
    wakeup.begin_poll()
    assert watcher.seen == []
    wakeup.end_poll(wakeup.begin_poll())
    assert watcher.seen == [4]


async def test_an_event_is_seen_when_all_bells_of_its_folder_have_looked() -> None:
    board, watcher = WakeupRegistry(), Told(4)
    first, second = board.subscribe("a"), board.subscribe("a")
    await listen(board, watcher)
    first.end_poll(first.begin_poll())
    assert watcher.seen == []
    board.unsubscribe("a", second)
    assert watcher.seen == [4]


async def test_an_event_that_concerns_nobody_is_seen_at_once() -> None:
    watcher = Told(4)
    await listen(WakeupRegistry(), watcher)
    assert watcher.seen == [4]


async def test_a_bell_that_nobody_looks_after_keeps_a_bounded_number_of_events() -> None:
    board, watcher = WakeupRegistry(), Told(*range(1200))
    wakeup = board.subscribe("a")
    running = asyncio.create_task(board.run([watcher]))
    await asyncio.sleep(0.05)
    assert watcher.seen == list(range(200))
    wakeup.release()
    assert watcher.seen == list(range(1200))
    running.cancel()
    await asyncio.wait({running})


async def test_a_ring_during_a_look_wakes_the_next_wait() -> None:
    wakeup = Wakeup()
    poll = wakeup.begin_poll()
    wakeup.set()
    wakeup.end_poll(poll)
    await asyncio.wait_for(wakeup.wait(), PATIENCE_SECONDS)
    assert not wakeup.begin_poll().is_woken


async def test_a_ring_before_a_look_is_told_and_needs_no_further_look() -> None:
    wakeup = Wakeup()
    wakeup.set()
    assert wakeup.begin_poll().is_woken
    waiting = asyncio.ensure_future(wakeup.wait())
    done, _ = await asyncio.wait({waiting}, timeout=0.02)
    assert not done
    waiting.cancel()
