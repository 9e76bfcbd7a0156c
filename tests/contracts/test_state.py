"""Every clause of `StateFiles`, for every kind of state, in every kind of store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import xxhash

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.errors import BugError, StateInUseError, StorageError, TailerdError
from tailerd.state.corrupt_commits import CorruptCommitRecord
from tailerd.state.history import LARGEST_FILE_BYTES
from tailerd.state.locked_files import LockedFiles
from tailerd.state.pipeline_records import PipelineRecord
from tailerd.state.state import State
from tailerd.storage.base import ObjectStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.metered import RequestKind
from tests.clouds.buckets import CLOUDS, new_bucket
from tests.contracts.test_offset_store import saved
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.owned_state import leased_state
from tests.doubles.sim_clock import SimClock

Put = Callable[[State, int], Awaitable[object]]
Get = Callable[[State], Awaitable[int | None]]


def record(number: int) -> PipelineRecord:
    identity = PipelineIdentity(daemon=str(number), table="orders", sink="file", location="/out")
    return PipelineRecord(identity=identity)


ID = "a/b" * 1000


def corrupt(number: int) -> CorruptCommitRecord:
    return CorruptCommitRecord(
        table_id=ID, version=number, position=0, error_code="e", message="m", time_ms=5
    )


async def get_offset(state: State) -> int | None:
    found = await state.offsets.load("orders")
    return None if found is None else found.offset.version


async def put_pause(state: State, number: int) -> None:
    await state.pauses.pause(f"orders{number}")
    await state.pauses.release(f"orders{number - 1}")


async def get_pause(state: State) -> int | None:
    await state.pauses.load()
    paused = [number for number in range(10) if state.pauses.is_paused(f"orders{number}")]
    return paused[0] if len(paused) == 1 else None


async def get_record(state: State) -> int | None:
    found = await state.pipelines.load("orders")
    return None if found is None else int(found.identity.daemon)


async def put_history(state: State, number: int) -> None:
    await asyncio.to_thread(state.history.save, [("orders", {"number": number})])


async def get_history(state: State) -> int | None:
    found = await asyncio.to_thread(state.history.load, "orders")
    return found.get("number") if isinstance(found, dict) else None


KINDS: dict[str, tuple[Put, Get]] = {
    "offset": (lambda state, number: state.offsets.save("orders", saved(number)), get_offset),
    "pause": (put_pause, get_pause),
    "record": (lambda state, number: state.pipelines.save("orders", record(number)), get_record),
    "history": (put_history, get_history),
}
WRITES: dict[str, Put] = {
    **{kind: put for kind, (put, _) in KINDS.items()},
    "corrupt commit": lambda state, number: state.corrupt_commits.record("orders", corrupt(number)),
}
STORES = (
    *("folder", "memory", "s3_moto"),
    *(pytest.param(name, marks=pytest.mark.full) for name in ("s3_versitygw", *CLOUDS)),
)
LEASED = STORES[1:]


@dataclass
class World:
    """One location, and the daemons that use it; `store` is None for a folder."""

    folder: Path
    store: ObjectStore | None
    root: str

    def state(self, holder: str = "first") -> State:
        """Return a daemon's view; a daemon waits until the lease of a suspended one expires."""
        if self.store is None:
            return State(LockedFiles(self.folder))
        return leased_state(self.store, self.root, SimClock(is_automatic=True), holder=holder)

    def suspended(self) -> State:
        """Return the view of a daemon that does not renew its lease."""
        assert self.store is not None
        return leased_state(self.store, self.root, SimClock(), holder="suspended")

    async def damage(self, body: bytes) -> int:
        """Replace the content of every file of the kinds; return how many there were."""
        state = self.state()
        store, root = state._files.store, state._files.root
        count = 0
        folders = ["offsets", "pipelines", "paused", "history"]
        folders += ["offsets/orders", "pipelines/orders", "paused/names"]
        for folder in folders:
            files = [file async for file in store.list_from(f"{root}/{folder}")]
            for file in files:
                if file.name.endswith(".json"):
                    await store.put(file.path, body)
                    count += 1
        return count


def make_world(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> World:
    if name == "folder":
        return World(tmp_path / "state", None, "")
    if name == "memory":
        return World(tmp_path, MemoryStore(), "/lake/state")
    return World(tmp_path, *new_bucket(request, name))


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make_world(request, tmp_path, request.param)


@pytest.fixture(params=LEASED)
def leased(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make_world(request, tmp_path, request.param)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_the_next_daemon_finds_what_was_saved_last(world: World, kind: str) -> None:
    put, get = KINDS[kind]
    first = world.state()
    async with first.hold():
        assert await get(first) is None
        for number in (1, 2, 3):
            await put(first, number)
        assert await get(first) == 3
    second = world.state("second")
    async with second.hold():
        assert await get(second) == 3
        await put(second, 4)
        assert await get(second) == 4


async def test_any_process_reads_what_the_owner_goes_on_saving(world: World, kind: str) -> None:
    put, get = KINDS[kind]
    owner = world.state()
    async with owner.hold():
        for number in (1, 2):
            await put(owner, number)
            assert await get(world.state("visitor")) == number
        assert await get(owner) == 2


@pytest.mark.parametrize("kind", WRITES)
async def test_nothing_is_saved_without_holding_the_state(world: World, kind: str) -> None:
    state = world.state()
    for _ in range(2):
        if kind == "history":
            await WRITES[kind](state, 1)
            assert await get_history(world.state()) is None
        else:
            with pytest.raises(BugError):
                await WRITES[kind](state, 1)
        async with state.hold():
            pass


async def test_a_second_owner_is_refused_by_the_name_of_the_first(world: World) -> None:
    def state() -> State:
        if world.store is None:
            return world.state()
        return leased_state(world.store, world.root, seconds=4)

    async with state().hold():
        with pytest.raises(StateInUseError, match=r"process \d+ on "):
            async with state().hold():
                pytest.fail("two own it")


@pytest.mark.attack
@pytest.mark.parametrize("is_aware", [True, False])
@pytest.mark.parametrize("kind", WRITES)
async def test_a_daemon_that_lost_the_state_cannot_change_it(
    leased: World, kind: str, is_aware: bool
) -> None:
    former, owner = leased.suspended(), leased.state("owner")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(former.hold())
        for put, get in KINDS.values():
            await put(former, 1)
            await get(former)
        await stack.enter_async_context(owner.hold())
        assert [await get(owner) for _, get in KINDS.values()] == [1] * len(KINDS)
        await owner.corrupt_commits.record("orders", corrupt(2))
        before = await list_all(leased)
        if is_aware:
            with pytest.raises(StateInUseError, match="taken over by owner"):
                await former._files.require_ownership()
        if kind == "history":
            await WRITES[kind](former, 2)
        else:
            with pytest.raises(StateInUseError, match="taken over by owner"):
                await WRITES[kind](former, 2)
        assert await list_all(leased) == before
        assert [await get(owner) for _, get in KINDS.values()] == [1] * len(KINDS)
    successor = leased.state("successor")
    async with successor.hold():
        assert [await get(successor) for _, get in KINDS.values()] == [1] * len(KINDS)


async def list_all(world: World) -> list[str]:
    """Return the paths of all files of the kinds that a process reads."""
    assert world.store is not None
    folders = ["offsets/orders", "paused/names", "pipelines/orders", "corrupt_commits/orders"]
    return [
        file.path
        for folder in folders
        async for file in world.store.list_from(f"{world.root}/{folder}")
    ]


async def test_a_daemon_that_slept_through_many_savings_saves_no_more(leased: World) -> None:
    former, owner = leased.suspended(), leased.state("owner")
    async with former.hold():
        await former.offsets.save("orders", saved(1))
        async with owner.hold():
            await owner.offsets.load("orders")
            for version in range(2, 9):
                await owner.offsets.save("orders", saved(version))
            with pytest.raises(StateInUseError, match="taken over by owner"):
                await former.offsets.save("orders", saved(2))
            await owner.offsets.save("orders", saved(9))
            assert await get_offset(leased.state("visitor")) == 9


async def test_a_saving_that_comes_before_the_takeover_is_what_the_next_goes_on_from(
    leased: World,
) -> None:
    former, owner = leased.suspended(), leased.state("owner")
    async with former.hold():
        await former.offsets.load("orders")
        async with owner.hold():
            await former.offsets.save("orders", saved(1))
            assert await get_offset(owner) == 1
            with pytest.raises(StateInUseError):
                await former.offsets.save("orders", saved(2))


@pytest.mark.parametrize("steps", range(40))
async def test_of_two_daemons_at_once_the_first_never_saves_after_the_second_has_loaded(
    steps: int, tmp_path: Path
) -> None:
    world = World(tmp_path, MemoryStore(), "/state")
    first, second = world.suspended(), world.state("second")
    reported: list[int] = []

    async def goes_on() -> None:
        for version in range(1, 20):
            await first.offsets.save("orders", saved(version))
            reported.append(version)
            await asyncio.sleep(0)

    async with first.hold():
        await first.offsets.save("orders", saved(0))
        async with second.hold():
            going = asyncio.create_task(goes_on())
            for _ in range(steps):
                await asyncio.sleep(0)
            found = await get_offset(second)
            assert found is not None
            # A saving that has not been told of may be found; one that was told of must be.
            assert found >= (reported[-1] if reported else 0)
            await second.offsets.save("orders", saved(100))
            done = (await asyncio.gather(going, return_exceptions=True))[0]
    assert isinstance(done, StateInUseError) or reported[-1] == 19
    assert await get_offset(world.state("visitor")) == 100


GOOD = {"format": 1, "token": 1, "holder": "x", "saved": None}
DAMAGED = {
    "empty": b"",
    "cut off": b'{"format": 1, "tok',
    "no UTF-8": b"\xff\xfe",
    "a number": b"7",
    "null": b"null",
    "nested": b"[" * 100_000,
    "without a token": json.dumps({"format": 1, "saved": None}).encode(),
    "from a newer release": json.dumps({**GOOD, "format": 2}).encode(),
    "with damaged content": json.dumps({**GOOD, "saved": {"format": 1}}).encode(),
    "with content of a newer release": json.dumps({**GOOD, "saved": {"format": 9}}).encode(),
    "with a text": json.dumps({**GOOD, "saved": "x"}).encode(),
    "too long": b" " * (LARGEST_FILE_BYTES + 1),
}


@pytest.mark.parametrize(
    ("case", "name"), [*product(DAMAGED, ("folder", "memory")), ("cut off", "s3_moto")]
)
async def test_a_damaged_file_is_named_and_the_next_save_replaces_it(
    case: str, name: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = make_world(request, tmp_path, name)
    put, get = KINDS[kind]
    owner = world.state()
    async with owner.hold():
        await put(owner, 1)
    assert await world.damage(DAMAGED[case]) >= 1
    visitor = world.state("visitor")
    if kind == "history":
        assert await get(visitor) is None
    else:
        with pytest.raises(TailerdError) as caught:
            await get(visitor)
        assert visitor._files.root in str(caught.value)
        assert "damaged" in str(caught.value) or "release" in str(caught.value)
        if kind == "offset":
            assert "tailerd offsets reset orders" in str(caught.value)
    if kind != "pause":
        successor = world.state("successor")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(successor._files.hold())
            await put(successor, 2)
            assert await get(successor) == 2


@pytest.mark.parametrize("request_kind", ["put", "list", "delete", "get"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("name", STORES[:2])
async def test_a_save_that_failed_is_followed_by_one_that_counts(
    request_kind: RequestKind, nth: int, name: str, kind: str, tmp_path: Path
) -> None:
    inner = MemoryStore()
    world = World(tmp_path / "state", None if name == "folder" else inner, "/state")
    put, get = KINDS[kind]
    state = world.state() if name == "folder" else world.suspended()
    async with state.hold():
        store = state._files.store = FaultyStore(state._files.store)
        for number in (1, 2, 3):
            await put(state, number)
        store.fail_nth(nth, kind=request_kind)
        for number in range(4, 9):
            try:
                await put(state, number)
            except (StorageError, OSError):
                is_readable = kind not in ("pause", "history")
                assert await get(state) in (number - 1, number, *([] if is_readable else [None]))
                await put(state, number)
            assert await get(world.state("visitor")) == number


async def test_a_pause_that_cannot_be_saved_is_an_error_and_no_pause(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    state = World(tmp_path, store, "/state").suspended()
    async with state.hold():
        store.fail_nth(1, kind="put")
        with pytest.raises(StorageError):
            await state.pauses.pause("orders")
        assert not state.pauses.is_paused("orders")


async def test_pauses_at_once_are_all_saved(world: World) -> None:
    state, names = world.state(), [f"t{number}" for number in range(5)]
    async with state.hold():
        await asyncio.gather(*(state.pauses.pause(name) for name in names))
        visitor = world.state("visitor")
        await visitor.pauses.load()
        assert all(visitor.pauses.is_paused(name) for name in names)


async def test_a_damaged_commit_has_one_record_however_often_it_is_left_out(world: World) -> None:
    state, locations = world.state(), []
    for number in (1, 1, 2):
        async with state.hold():
            locations.append(await state.corrupt_commits.record("orders", corrupt(number)))
    assert locations[0] == locations[1]
    store, folder = state._files.store, f"{state._files.root}/corrupt_commits/orders"
    files = [file async for file in store.list_from(folder)]
    assert [file.name for file in files] == [
        f"{n:020}-{xxhash.xxh3_64_hexdigest(ID.encode())}.json" for n in (1, 2)
    ]
    assert [store.format_url(file.path) for file in files] == locations[1:]
    fields = json.loads(await store.get(files[0].path))
    assert (fields["message"], fields["version"]) == ("m", 1)
    assert isinstance(fields["token"], int)


async def test_the_two_newest_files_are_kept_and_those_of_others(leased: World) -> None:
    assert leased.store is not None
    folder = f"{leased.root}/offsets/orders"
    for name in ("notes.txt", "x.json"):
        await leased.store.put(f"{folder}/{name}", b"mine")
    state = leased.state()
    async with state.hold():
        assert await state.offsets.load("orders") is None
        for version in range(4):
            await state.offsets.save("orders", saved(version))
    names = [file.name async for file in leased.store.list_from(folder)]
    assert names == [f"{4:020}.json", f"{5:020}.json", "notes.txt", "x.json"]


async def test_a_scratch_location_requires_holding_the_state(leased: World) -> None:
    with pytest.raises(BugError):
        leased.state().scratch("orders")


async def test_superseded_histories_and_the_oldest_of_too_many_are_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.state.history.MAX_FILES", 2)
    state = world.state()
    for holder, names in (("first", "abc"), ("second", "bc")):
        state = world.state(holder)
        async with state.hold():
            for name in names:
                await asyncio.to_thread(state.history.save, [(name, {"of": holder})])
                await asyncio.sleep(1.01 if holder == "first" and world.store else 0.01)
            await asyncio.to_thread(state.history.prune)
    listed = state._files.store.list_from(f"{state._files.root}/history")
    assert [file.name[0] async for file in listed] == ["b", "c"]
    assert await asyncio.to_thread(world.state().history.load, "b") == {"of": "second"}


async def test_a_history_that_cannot_be_saved_names_its_file(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    state = World(tmp_path, store, "/state").suspended()
    async with state.hold():
        store.fail_nth(1, kind="put")
        with pytest.raises(OSError, match="told it to") as caught:
            await asyncio.to_thread(state.history.save, [("orders", {})])
    assert "/state/history/orders." in caught.value.filename
