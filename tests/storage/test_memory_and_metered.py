"""Dates of files in memory, and counted requests."""

from __future__ import annotations

import pytest

from tailerd.errors import FileMissingError
from tailerd.storage.memory import MemoryStore
from tailerd.storage.metered import MeteredStore, RequestKind
from tests.doubles.sim_clock import SimClock


async def test_files_in_memory_are_dated_by_the_clock_and_can_be_dated_otherwise() -> None:
    clock = SimClock(start_ms=1000)
    store = MemoryStore(clock=clock)
    await store.put("/a", b"x")
    await clock.advance(1.5)
    await store.put("/b", b"x")
    assert [(m.name, m.mtime_ms) async for m in store.list_from("/")] == [("a", 1000), ("b", 2500)]
    store.set_mtime("/a", 7)
    assert (await store.head("/a")).mtime_ms == 7
    with pytest.raises(FileMissingError):
        store.set_mtime("/absent", 7)


async def test_requests_are_counted_by_kind_also_when_they_fail() -> None:
    heard: list[RequestKind] = []
    store = MeteredStore(MemoryStore(), heard.append)
    await store.put("/t/a", b"1")
    await store.put("/t/b", b"2")
    assert [meta.name async for meta in store.list_from("/t")] == ["a", "b"]
    assert await store.get_many(["/t/a", "/t/b"]) == [b"1", b"2"]
    assert await store.get("/t/a") == b"1"
    await store.head("/t/a")
    store.open_input("/t/a").close()
    await store.delete("/t/b")
    with pytest.raises(FileMissingError):
        await store.get("/t/b")
    assert store.requests == {"list": 1, "get": 4, "head": 1, "put": 2, "delete": 1, "open": 1}
    assert store.total == len(heard) == 10
    assert heard[:4] == ["put", "put", "list", "get"]
    store.reset()
    assert store.total == 0
    assert store.scheme == "memory"
