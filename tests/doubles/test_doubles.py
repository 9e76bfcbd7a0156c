"""The doubles do what they say; a fault that does not happen makes other tests lie."""

from __future__ import annotations

import asyncio

import pytest

from tailerd.errors import AccessDeniedError, StorageError
from tailerd.storage.memory import MemoryStore
from tailerd.watchers.base import StorageEvent
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.scripted_watcher import ScriptedWatcher
from tests.doubles.sim_clock import SimClock


@pytest.fixture
async def store() -> FaultyStore:
    inner = MemoryStore()
    for name in ("a", "b"):
        await inner.put(f"/t/{name}", name.encode() * 4)
    return FaultyStore(inner)


async def test_the_nth_request_fails_and_no_other(store: FaultyStore) -> None:
    store.fail_nth(2, kind="get")
    assert await store.get("/t/a") == b"aaaa"
    await store.head("/t/a")
    with pytest.raises(StorageError):
        await store.get("/t/a")
    assert await store.get("/t/a") == b"aaaa"
    assert store.count("get") == 3


async def test_a_failure_can_be_aimed_at_a_path_and_be_any_error(store: FaultyStore) -> None:
    store.fail_nth(1, AccessDeniedError("no"), path_part="/b")
    assert await store.get_many(["/t/a"]) == [b"aaaa"]
    with pytest.raises(AccessDeniedError):
        await store.get_many(["/t/a", "/t/b"])


async def test_listings_are_stale_as_often_as_asked(store: FaultyStore) -> None:
    store.hide_from_listings("b", times=2)
    seen = [[meta.name async for meta in store.list_from("/t")] for _ in range(3)]
    assert seen == [["a"], ["a"], ["a", "b"]]


async def test_a_torn_read_shows_the_beginning_only(store: FaultyStore) -> None:
    store.tear("b", 1)
    assert await store.get_many(["/t/a", "/t/b"]) == [b"aaaa", b"b"]
    assert await store.get("/t/b") == b"bbbb"


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock = SimClock(start_ms=0)
    woken: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now_ms()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 3))
        group.create_task(sleeper("early", 1))
        await asyncio.sleep(0)
        assert clock.sleepers == 2
        await clock.advance(2)
        assert woken == [("early", 1000)]
        clock.jump_wall(-60_000)
        await clock.advance(2)
    assert woken == [("early", 1000), ("late", -57_000)]
    assert clock.monotonic() == 4


async def test_an_automatic_clock_skips_the_waiting() -> None:
    clock = SimClock(is_automatic=True)
    await clock.sleep(86_400)
    assert clock.monotonic() == 86_400


async def test_a_scripted_watcher_gives_its_hints_and_notes_that_it_was_closed() -> None:
    watcher = ScriptedWatcher(["/a"])
    events = watcher.events()
    assert await anext(events) == StorageEvent("/a")
    watcher.hint("/b", times=2)
    assert [await anext(events), await anext(events)] == [StorageEvent("/b")] * 2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(events)
    await events.aclose()
    watcher.hint("/c")
    assert (watcher.opened, watcher.closed) == (1, 1)
