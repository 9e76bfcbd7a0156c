"""The state in a bucket: one holder, and what the next one finds of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tailerd.clock import SystemClock
from tailerd.errors import BugError, StateInUseError, StorageError
from tailerd.pipeline.corrupt_commit_log import CorruptCommitRecord
from tailerd.pipeline.state_place import BucketState
from tailerd.storage.base import ObjectStore
from tailerd.storage.memory import MemoryStore
from tailerd.telemetry.history_store import LARGEST_FILE_BYTES
from tests.contracts.test_offset_store import saved
from tests.doubles.faulty_store import FaultyStore

ROOT = "/lake/state"
RECORD = CorruptCommitRecord(
    table_id="t", version=3, position=0, error_code="missing", message="gone", time_ms=5
)


def state_in(store: ObjectStore) -> BucketState:
    return BucketState(store, ROOT, clock=SystemClock())


async def names(store: ObjectStore, folder: str) -> list[str]:
    return [file.name async for file in store.list_from(f"{ROOT}/{folder}")]


async def test_a_second_daemon_is_refused_by_the_name_of_one_that_lives() -> None:
    store = MemoryStore()
    first = BucketState(store, ROOT, clock=SystemClock(), seconds=4)
    async with first.held():
        with pytest.raises(StateInUseError, match=r"process \d+ on .* works on this state now"):
            async with BucketState(store, ROOT, clock=SystemClock(), seconds=4).held():
                pytest.fail("two hold it")


async def test_the_next_daemon_finds_everything() -> None:
    store = MemoryStore()
    first = state_in(store)
    async with first.held():
        await first.offsets().save("orders", saved(4))
        await asyncio.to_thread(first.pauses.pause, "orders")
        await asyncio.to_thread(first.pauses.pause, "other")
        await asyncio.to_thread(first.pauses.release, "other")
        await asyncio.to_thread(first.history.save, "orders", {"a": 1})
    second = state_in(store)
    async with second.held():
        assert await second.offsets().load("orders") == saved(4)
        assert second.pauses.is_paused("orders")
        assert not second.pauses.is_paused("other")
        assert await asyncio.to_thread(second.history.load, "orders") == {"a": 1}


async def test_offsets_can_be_looked_at_while_a_daemon_holds_them() -> None:
    store = MemoryStore()
    state = state_in(store)
    async with state.held():
        await state.offsets().save("orders", saved(4))
        assert await state_in(store).offsets().load("orders") == saved(4)
        await state.offsets().save("orders", saved(5))


async def test_a_spool_is_for_who_holds_the_state() -> None:
    with pytest.raises(BugError):
        state_in(MemoryStore()).scratch("orders")


async def test_a_damaged_commit_has_one_record_however_often_it_is_left_out() -> None:
    store = MemoryStore()
    places = [await state_in(store).corrupt_commits.record("orders", RECORD) for _ in range(2)]
    [place] = set(places)
    assert place == f"s3://{ROOT}/corrupt_commits/orders/{3:020}-t.json"
    assert await names(store, "corrupt_commits/orders") == [f"{3:020}-t.json"]
    body = await store.get(place.removeprefix("s3://"))
    assert json.loads(body)["message"] == "gone"


async def test_a_pause_that_cannot_be_remembered_is_an_error_and_no_pause() -> None:
    faulty = FaultyStore(MemoryStore())
    state = state_in(faulty)
    faulty.fail_nth(1, kind="put")
    with pytest.raises(StorageError):
        await asyncio.to_thread(state.pauses.pause, "orders")
    assert not state.pauses.is_paused("orders")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * (LARGEST_FILE_BYTES + 1)])
async def test_a_past_that_cannot_be_read_is_none(body: bytes) -> None:
    store = MemoryStore()
    await store.put(f"{ROOT}/history/orders.json", body)
    state = state_in(store)
    assert await asyncio.to_thread(state.history.load, "orders") is None
    assert await asyncio.to_thread(state.history.load, "other") is None


async def test_a_past_that_cannot_be_saved_names_its_file() -> None:
    faulty = FaultyStore(MemoryStore())
    faulty.fail_nth(1, kind="put")
    with pytest.raises(OSError, match="told it to") as caught:
        await asyncio.to_thread(state_in(faulty).history.save, "orders", {})
    assert caught.value.filename == f"s3://{ROOT}/history/orders.json"
