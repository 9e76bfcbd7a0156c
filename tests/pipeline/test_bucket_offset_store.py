"""Offsets in a bucket: who may save, what is kept, and what damage leaves behind."""

from __future__ import annotations

import asyncio
import json

import pytest

from tailerd.errors import OffsetError, StateInUseError, StorageError, TailerdError
from tailerd.pipeline.bucket_offset_store import BucketOffsetStore
from tailerd.storage.base import ObjectStore
from tailerd.storage.lease import Holder, Lease
from tailerd.storage.memory import MemoryStore
from tailerd.storage.metered import RequestKind
from tests.contracts.test_offset_store import saved
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock

FOLDER = "/state/offsets"
FIRST = Holder(machine="here", pid=1, name="process 1 on here")
SECOND = Holder(machine="there", pid=2, name="process 2 on there")


class World:
    """Daemons that take the state one after the other, each believing the one before is gone."""

    def __init__(self, objects: ObjectStore | None = None) -> None:
        self.objects = objects or MemoryStore()
        self.clock = SimClock(is_automatic=True)

    async def daemon(self, holder: Holder = FIRST) -> BucketOffsetStore:
        lease = Lease(self.objects, "/state", clock=self.clock, holder=holder)
        await lease.acquire_waiting()
        return BucketOffsetStore(self.objects, FOLDER, lease)

    def visitor(self) -> BucketOffsetStore:
        return BucketOffsetStore(self.objects, FOLDER)

    async def names(self) -> list[str]:
        listed = self.objects.list_from(f"{FOLDER}/orders")
        return [file.name.removesuffix(".json").lstrip("0") async for file in listed]

    async def put(self, number: int, body: bytes) -> str:
        path = f"{FOLDER}/orders/{number:020}.json"
        await self.objects.put(path, body)
        return path


async def test_the_newest_and_the_one_before_are_kept() -> None:
    world = World()
    store = await world.daemon()
    for version in range(6):
        await store.save("orders", saved(version))
    assert await world.names() == ["5", "6"]


async def test_a_daemon_that_was_replaced_saves_no_more_and_names_the_other() -> None:
    world = World()
    first = await world.daemon()
    await first.save("orders", saved(1))
    second = await world.daemon(SECOND)
    assert await second.load("orders") == saved(1)
    with pytest.raises(StateInUseError, match="process 2 on there"):
        await first.save("orders", saved(2))
    with pytest.raises(StateInUseError, match="process 2 on there"):
        await first.load("orders")
    await second.save("orders", saved(3))
    assert await world.visitor().load("orders") == saved(3)


async def test_a_daemon_that_slept_through_many_savings_saves_no_more() -> None:
    world = World()
    first = await world.daemon()
    await first.save("orders", saved(1))
    second = await world.daemon(SECOND)
    await second.load("orders")
    for version in range(2, 9):
        await second.save("orders", saved(version))
    with pytest.raises(StateInUseError, match="process 2 on there"):
        await first.save("orders", saved(2))
    assert await world.visitor().load("orders") == saved(8)
    await second.save("orders", saved(9))
    assert await world.visitor().load("orders") == saved(9)


async def test_a_saving_that_comes_before_the_takeover_is_what_the_next_goes_on_from() -> None:
    world = World()
    first = await world.daemon()
    await first.load("orders")
    second = await world.daemon(SECOND)
    await first.save("orders", saved(1))
    assert await second.load("orders") == saved(1)
    with pytest.raises(StateInUseError):
        await first.save("orders", saved(2))


@pytest.mark.parametrize("steps", range(40))
async def test_of_two_daemons_at_once_the_first_never_saves_after_the_second_has_loaded(
    steps: int,
) -> None:
    world = World()
    first = await world.daemon()
    await first.save("orders", saved(0))
    second = await world.daemon(SECOND)
    told: list[int] = []

    async def goes_on() -> None:
        for version in range(1, 20):
            await first.save("orders", saved(version))
            told.append(version)
            await asyncio.sleep(0)

    async def takes_over() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        found = await second.load("orders")
        assert found is not None
        # A saving that has not been told of may be found; one that was told of must be.
        assert found.offset.version >= (told[-1] if told else 0)
        await second.save("orders", saved(100))

    going = asyncio.create_task(goes_on())
    await takes_over()
    done = (await asyncio.gather(going, return_exceptions=True))[0]
    assert isinstance(done, StateInUseError) or told[-1] == 19
    assert await world.visitor().load("orders") == saved(100)


async def test_looking_takes_nothing_over_and_saves_nothing() -> None:
    world = World()
    first = await world.daemon()
    await first.save("orders", saved(1))
    assert await world.visitor().load("orders") == saved(1)
    assert await world.names() == ["1"]
    with pytest.raises(TailerdError):
        await world.visitor().save("orders", saved(2))
    await first.save("orders", saved(2))


@pytest.mark.parametrize("kind", ["put", "list", "delete"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_saving_that_failed_is_followed_by_one_that_counts(
    kind: RequestKind, nth: int
) -> None:
    faulty = FaultyStore(MemoryStore())
    world = World(faulty)
    store = await world.daemon()
    for version in range(3):
        await store.save("orders", saved(version))
    faulty.fail_nth(nth, kind=kind)
    for version in range(3, 8):
        try:
            await store.save("orders", saved(version))
        except StorageError:
            assert (await store.load("orders")) in (saved(version - 1), saved(version))
            await store.save("orders", saved(version))
        assert await BucketOffsetStore(faulty.inner, FOLDER).load("orders") == saved(version)
    assert len(await world.names()) == 2


GOOD = {"format": 1, "token": 1, "holder": "x", "saved": None}
DAMAGED = {
    "empty": b"",
    "cut off": b'{"format": 1, "tok',
    "no UTF-8": b"\xff\xfe",
    "a list": b"[]",
    "null": b"null",
    "without a token": json.dumps({"format": 1, "saved": None}).encode(),
    "from a newer release": json.dumps({**GOOD, "format": 2}).encode(),
    "with a damaged offset": json.dumps({**GOOD, "saved": {"format": 1}}).encode(),
    "with an offset of a newer release": json.dumps({**GOOD, "saved": {"format": 9}}).encode(),
    "with a text for an offset": json.dumps({**GOOD, "saved": "x"}).encode(),
}


@pytest.mark.parametrize("case", DAMAGED)
async def test_a_damaged_file_is_named_and_a_reset_replaces_it(case: str) -> None:
    world = World()
    path = await world.put(7, DAMAGED[case])
    store = await world.daemon()
    with pytest.raises(OffsetError) as caught:
        await store.load("orders")
    assert path in str(caught.value)
    assert "tailerd offsets reset orders" in str(caught.value)
    await store.save("orders", saved(3))
    assert await store.load("orders") == saved(3)
    assert await world.names() == ["7", "8"]


async def test_files_of_others_are_left_alone() -> None:
    world = World()
    await world.objects.put(f"{FOLDER}/orders/notes.txt", b"mine")
    await world.objects.put(f"{FOLDER}/orders/x.json", b"mine")
    store = await world.daemon()
    assert await store.load("orders") is None
    for version in range(4):
        await store.save("orders", saved(version))
    assert await world.names() == ["4", "5", "notes.txt", "x"]
