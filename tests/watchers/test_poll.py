"""How often the floor hints: rarely where file events are relied upon, never not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

from tailerd.watchers.poll import (
    CLOSE_SECONDS,
    WIDE_PER_SECOND,
    WIDE_SECONDS,
    FloorWatcher,
    Pace,
)
from tests.doubles.sim_clock import SimClock


async def hints_within(
    watcher: FloorWatcher, clock: SimClock, seconds: float
) -> list[Counter[str]]:
    """Return the hints of each half second."""
    heard: list[Counter[str]] = []

    async def listen() -> None:
        async with aclosing(watcher.events()) as events:
            async for event in events:
                heard[-1][event.folder] += 1

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    for _ in range(round(seconds * 2)):
        heard.append(Counter())
        await clock.advance(0.5)
    listening.cancel()
    await asyncio.wait({listening})
    return heard


async def test_covered_folders_are_hinted_rarely_and_others_often() -> None:
    clock = SimClock()
    watcher = FloorWatcher(["a", "b", "c"], is_covered=lambda folder: folder != "b", clock=clock)
    total = sum(await hints_within(watcher, clock, 4 * WIDE_SECONDS), Counter[str]())
    assert total["a"] == total["c"] == 4
    assert total["b"] == 4 * WIDE_SECONDS / CLOSE_SECONDS


async def test_folders_are_hinted_at_the_pace_that_is_given() -> None:
    clock, pace = SimClock(), Pace(close_seconds=10.0, wide_seconds=60.0)
    watcher = FloorWatcher(["a", "b"], is_covered=lambda f: f == "a", clock=clock, pace=pace)
    total = sum(await hints_within(watcher, clock, 120), Counter[str]())
    assert total == {"a": 2, "b": 12}


async def test_a_folder_that_is_covered_no_more_is_hinted_soon() -> None:
    clock = SimClock()
    covered = {"a"}
    watcher = FloorWatcher(["a"], is_covered=lambda folder: folder in covered, clock=clock)
    events = watcher.events()
    hint = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await clock.advance(0.5)
    assert hint.done()
    hint = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await clock.advance(CLOSE_SECONDS)
    assert not hint.done()
    covered.clear()
    await clock.advance(CLOSE_SECONDS)
    assert hint.done()
    await events.aclose()


async def test_hints_of_many_folders_are_spread_over_the_interval() -> None:
    clock = SimClock()
    folders = [str(number) for number in range(240)]
    watcher = FloorWatcher(folders, is_covered=lambda _: True, clock=clock)
    heard = await hints_within(watcher, clock, WIDE_SECONDS)
    assert sum(heard, Counter[str]()) == dict.fromkeys(folders, 1)
    assert max(each.total() for each in heard) == 240 / (2 * WIDE_SECONDS)


async def test_of_a_thousand_covered_folders_eight_are_hinted_a_second() -> None:
    clock = SimClock()
    folders = [str(number) for number in range(1000)]
    watcher = FloorWatcher(folders, is_covered=lambda _: True, clock=clock)
    heard = await hints_within(watcher, clock, 125)
    assert sum(heard, Counter[str]()) == dict.fromkeys(folders, 1)
    assert max(each.total() for each in heard) == WIDE_PER_SECOND / 2


async def test_hints_of_many_folders_are_spread_over_the_whole_interval() -> None:
    clock, pace = SimClock(), Pace(close_seconds=30.0, wide_seconds=900.0)
    folders = [str(number) for number in range(1000)]
    watcher = FloorWatcher(folders, is_covered=lambda _: True, clock=clock, pace=pace)
    heard = await hints_within(watcher, clock, 900)
    assert sum(heard, Counter[str]()) == dict.fromkeys(folders, 1)
    minutes = [sum(c.total() for c in heard[at : at + 120]) for at in range(0, 1800, 120)]
    assert max(minutes) <= 68
