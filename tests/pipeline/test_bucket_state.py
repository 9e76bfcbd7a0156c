"""The state in a bucket: one holder, and what the next one finds of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.clock import SystemClock
from tailerd.errors import BugError, StateInUseError, StorageError
from tailerd.pipeline.corrupt_commit_log import CorruptCommitRecord
from tailerd.pipeline.pipeline_records import PipelineRecord
from tailerd.pipeline.state_place import BucketState
from tailerd.storage.base import ObjectStore
from tailerd.storage.memory import MemoryStore
from tailerd.telemetry.history_store import LARGEST_FILE_BYTES
from tests.contracts.test_offset_store import saved
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock

ROOT = "/lake/state"
RECORD = CorruptCommitRecord(
    table_id="t", version=3, position=0, error_code="missing", message="gone", time_ms=5
)


def state_in(store: ObjectStore) -> BucketState:
    return BucketState(store, ROOT, clock=SystemClock())


async def names(store: ObjectStore, folder: str) -> list[str]:
    return [file.name async for file in store.list_from(f"{ROOT}/{folder}")]


def record_of(daemon: str) -> PipelineRecord:
    identity = PipelineIdentity(daemon=daemon, table="orders", sink="file", place="/out")
    return PipelineRecord(identity=identity)


async def save_history(state: BucketState) -> None:
    await asyncio.to_thread(state.history.save, "orders", {"of": "the former daemon"})


WRITES: dict[str, Callable[[BucketState], Awaitable[object]]] = {
    "pause": lambda state: asyncio.to_thread(state.pauses.pause, "late"),
    "release": lambda state: asyncio.to_thread(state.pauses.release, "orders"),
    "pipeline record": lambda state: state.pipelines.save("orders", record_of("former")),
    "new pipeline record": lambda state: state.pipelines.save("other", record_of("former")),
    "corrupt commit": lambda state: state.corrupt_commits.record("orders", RECORD),
    "offset": lambda state: state.offsets().save("orders", saved(1)),
    "history": save_history,
}


async def observe(state: BucketState) -> dict[str, object]:
    """Return all that a daemon reads of a state that it holds."""
    return {
        "paused": [name for name in ("orders", "late") if state.pauses.is_paused(name)],
        "record": await state.pipelines.load("orders"),
        "offset": await state.offsets().load("orders"),
        "history": await asyncio.to_thread(state.history.load, "orders"),
    }


@pytest.mark.attack
@pytest.mark.parametrize("is_aware", [True, False])
@pytest.mark.parametrize("kind", WRITES)
async def test_a_daemon_that_lost_its_lease_cannot_change_the_state(
    kind: str, is_aware: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    former = BucketState(store, ROOT, clock=SimClock())  # Suspended: it does not renew.
    async with former.held():
        await asyncio.to_thread(former.pauses.pause, "orders")
        await former.pipelines.save("orders", record_of("both"))
        await former.offsets().save("orders", saved(4))
        await save_history(former)
        held_token = await former._token()

        async def keep_token() -> int | None:
            return held_token

        owner = BucketState(store, ROOT, clock=SimClock(is_automatic=True))
        async with owner.held():
            before = await observe(owner)
            assert before["paused"] == ["orders"]
            await owner.pipelines.save("other", record_of("owner"))
            if is_aware or kind in ("corrupt commit", "offset", "history"):
                with nullcontext() if kind == "history" else pytest.raises(StateInUseError):
                    assert former._lease is not None
                    await former._lease.is_mine()
                    await WRITES[kind](former)
            else:
                # Suspended between the check and the write.
                monkeypatch.setattr(former._pauses._file, "_token", keep_token)
                monkeypatch.setattr(former, "_token", keep_token)
                await WRITES[kind](former)
            assert await observe(owner) == before
        successor = BucketState(store, ROOT, clock=SimClock(is_automatic=True))
        async with successor.held():
            assert await observe(successor) == before
            assert await successor.pipelines.load("other") == record_of("owner")


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
    places = []
    for _ in range(2):
        state = state_in(store)
        async with state.held():
            places.append(await state.corrupt_commits.record("orders", RECORD))
    [place] = set(places)
    assert place == f"s3://{ROOT}/corrupt_commits/orders/{3:020}-t.json"
    assert await names(store, "corrupt_commits/orders") == [f"{3:020}-t.json"]
    body = await store.get(place.removeprefix("s3://"))
    assert json.loads(body)["message"] == "gone"


async def test_a_pause_that_cannot_be_remembered_is_an_error_and_no_pause() -> None:
    faulty = FaultyStore(MemoryStore())
    state = state_in(faulty)
    async with state.held():
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
    state = state_in(faulty)
    async with state.held():
        faulty.fail_nth(1, kind="put")
        with pytest.raises(OSError, match="told it to") as caught:
            await asyncio.to_thread(state.history.save, "orders", {})
    assert caught.value.filename == f"s3://{ROOT}/history/orders.json"
