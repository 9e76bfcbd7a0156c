"""What one reader just fetched is not asked for again by another, and never wrongly known."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from typing import cast

import pytest

from tailerd.errors import FileMissingError, StorageError
from tailerd.storage import shared_reads
from tailerd.storage.base import (
    DeletesMany,
    ListsFolders,
    MarksFolders,
    NondurableStore,
    ObjectStore,
    OpensAhead,
)
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.metered import MeteredStore
from tailerd.storage.output import OutputStore
from tailerd.storage.s3.store import S3Store
from tailerd.storage.shared_reads import SharedReads, filling_cache, sharing_cache, using_cache

FOLDER = "/t/_delta_log"


def is_commit(path: str) -> bool:
    return path.endswith(".json")


@pytest.fixture
def store() -> MeteredStore:
    return MeteredStore(MemoryStore())


@pytest.mark.parametrize("inner", [LocalStore(), MeteredStore(MemoryStore()), S3Store()])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda store: filling_cache(store, SharedReads()),
        lambda store: using_cache(store, FOLDER, SharedReads()),
        lambda store: sharing_cache(store, FOLDER, SharedReads(), is_commit, 0.5),
    ],
)
@pytest.mark.parametrize(
    "kind", [MarksFolders, ListsFolders, OpensAhead, OutputStore, NondurableStore, DeletesMany]
)
def test_a_store_that_is_listened_to_can_do_what_it_could(
    inner: ObjectStore, wrap: Callable[[ObjectStore], ObjectStore], kind: type
) -> None:
    wrapped = wrap(inner)
    assert isinstance(wrapped, kind) == isinstance(inner, kind)
    # As `isinstance` looks from Python 3.12 on, which asks no `__getattr__`.
    for name in vars(kind).get("__protocol_attrs__") or [n for n in vars(kind) if n[0] != "_"]:
        assert hasattr(inner, name) == (inspect.getattr_static(wrapped, name, None) is not None)


async def test_a_file_that_was_told_of_is_not_asked_for_and_only_once(store: MeteredStore) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    await store.put(f"{FOLDER}/1.json", b"one")
    reported = await filler.fetch(f"{FOLDER}/1.json", 0, 100)
    store.reset()
    assert await reader.fetch(f"{FOLDER}/1.json", 0, 100) == reported
    assert store.total == 0
    assert await reader.fetch(f"{FOLDER}/1.json", 0, 100) == reported
    assert store.total == 1


async def test_that_a_file_is_missing_is_told_too_until_it_is_there(store: MeteredStore) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    for _ in range(2):
        with pytest.raises(FileMissingError):
            await filler.fetch(f"{FOLDER}/2.json")
    store.reset()
    with pytest.raises(FileMissingError, match=r"2\.json"):
        await reader.fetch(f"{FOLDER}/2.json")
    assert store.total == 0
    with pytest.raises(FileMissingError):
        await filler.fetch(f"{FOLDER}/2.json")
    await store.put(f"{FOLDER}/2.json", b"two")
    await filler.fetch(f"{FOLDER}/2.json")
    assert (await reader.fetch(f"{FOLDER}/2.json"))[1] == b"two"


async def test_ranges_are_cut_from_what_is_known_and_parts_are_not_told(
    store: MeteredStore,
) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    await store.put(f"{FOLDER}/1.json", b"0123456789")
    for start, length in [(0, 4), (3, None), (3, 4)]:
        await filler.fetch(f"{FOLDER}/1.json")
        store.reset()
        meta, body = await reader.fetch(f"{FOLDER}/1.json", start, length)
        assert (store.total, meta.size_bytes) == (0, 10)
        assert body == await store.get(f"{FOLDER}/1.json", start, length)
    for start, length in [(0, 4), (3, None)]:
        await filler.fetch(f"{FOLDER}/1.json", start, length)
        store.reset()
        assert (await reader.fetch(f"{FOLDER}/1.json"))[1] == b"0123456789"
        assert store.total == 1


async def test_other_folders_and_other_schemes_are_not_overheard(store: MeteredStore) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    await store.put("/other/_delta_log/1.json", b"other")
    await filler.fetch("/other/_delta_log/1.json")
    store.reset()
    assert (await reader.fetch("/other/_delta_log/1.json"))[1] == b"other"
    assert store.total == 1


async def test_a_whole_listing_tells_what_is_not_there(store: MeteredStore) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    for number in (1, 2):
        await store.put(f"{FOLDER}/{number}.json", b"x")
    assert len([meta async for meta in filler.list_from(FOLDER, "1.json")]) == 1
    store.reset()
    with pytest.raises(FileMissingError):
        await reader.fetch(f"{FOLDER}/3.json")
    assert store.total == 0
    assert (await reader.fetch(f"{FOLDER}/2.json"))[1] == b"x"
    assert (await reader.fetch(f"{FOLDER}/1.json"))[1] == b"x"
    assert store.total == 2
    await store.put(f"{FOLDER}/3.json", b"x")
    await filler.fetch(f"{FOLDER}/3.json")
    assert (await reader.fetch(f"{FOLDER}/3.json"))[1] == b"x"


@pytest.mark.parametrize("way", ["get", "get_many", "fetch"])
@pytest.mark.parametrize("before", ["asked", "listed"])
async def test_what_was_read_meanwhile_is_no_longer_missing(
    store: MeteredStore, way: str, before: str
) -> None:
    shared = SharedReads()
    listener, teller = using_cache(store, "/log", shared), filling_cache(store, shared)
    if before == "listed":
        assert [meta async for meta in teller.list_from("/log", "")] == []
    else:
        with pytest.raises(FileMissingError):
            await teller.fetch("/log/1.json")
    await store.put("/log/1.json", b"one")
    if way == "get":
        await teller.get("/log/1.json", 0, 2)
    elif way == "get_many":
        await teller.get_many(["/log/1.json"])
    else:
        await teller.fetch("/log/1.json")
        # What it told is taken once, and then asked for.
        await listener.fetch("/log/1.json")
    assert (await listener.fetch("/log/1.json"))[1] == b"one"


async def test_a_listing_that_was_broken_off_tells_nothing(store: MeteredStore) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    for number in (1, 2):
        await store.put(f"{FOLDER}/{number}.json", b"x")
    async for _ in filler.list_from(FOLDER):
        break
    assert (await reader.fetch(f"{FOLDER}/2.json"))[1] == b"x"


async def test_what_was_heard_long_ago_is_asked_for_again(
    store: MeteredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    with pytest.raises(FileMissingError):
        await filler.fetch(f"{FOLDER}/1.json")
    await store.put(f"{FOLDER}/1.json", b"one")
    monkeypatch.setattr(shared_reads, "KEEP_SECONDS", 0.0)
    assert (await reader.fetch(f"{FOLDER}/1.json"))[1] == b"one"


async def test_memory_is_bounded_the_oldest_go_first(
    store: MeteredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_reads, "MAX_BYTES", 100)
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    for number in range(4):
        await store.put(f"{FOLDER}/{number}", bytes(40))
        await filler.fetch(f"{FOLDER}/{number}")
    store.reset()
    for number in (2, 3):
        await reader.fetch(f"{FOLDER}/{number}")
    assert store.total == 0
    for number in (0, 1):
        await reader.fetch(f"{FOLDER}/{number}")
    assert store.total == 2


async def test_nothing_is_kept_where_nobody_hears(store: MeteredStore) -> None:
    shared = SharedReads()
    reader, filler = using_cache(store, FOLDER, shared), filling_cache(store, shared)
    await store.put(f"{FOLDER}/1.json", b"one")
    del reader
    gc.collect()
    await filler.fetch(f"{FOLDER}/1.json")
    later = using_cache(store, FOLDER, shared)
    store.reset()
    await later.fetch(f"{FOLDER}/1.json")
    assert store.total == 1


def test_everything_else_is_the_stores_own(store: MeteredStore) -> None:
    for wrapped in (filling_cache(store, SharedReads()), using_cache(store, FOLDER, SharedReads())):
        assert wrapped.scheme == "memory"
        assert wrapped.delete == store.delete


async def test_readers_that_share_a_log_make_the_requests_of_one(store: MeteredStore) -> None:
    shared = SharedReads()
    readers = [sharing_cache(store, FOLDER, shared, is_commit, 60.0) for _ in range(3)]
    await store.put(f"{FOLDER}/1.json", b"one")
    store.reset()
    found = await asyncio.gather(*(each.fetch(f"{FOLDER}/1.json") for each in readers))
    assert {body for _, body in found} == {b"one"}
    assert store.total == 1
    next_up = [each.fetch(f"{FOLDER}/2.json") for each in readers]
    missing = await asyncio.gather(*next_up, return_exceptions=True)
    assert [type(each) for each in missing] == [FileMissingError] * 3
    assert store.total == 2


async def test_a_listed_file_is_no_longer_missing_for_those_who_share(store: MeteredStore) -> None:
    shared = SharedReads()
    one, other = (sharing_cache(store, FOLDER, shared, is_commit, 60.0) for _ in range(2))
    with pytest.raises(FileMissingError):
        await one.fetch(f"{FOLDER}/2.json")
    await store.put(f"{FOLDER}/2.json", b"two")
    assert [meta.name async for meta in other.list_from(FOLDER)] == ["2.json"]
    assert (await other.fetch(f"{FOLDER}/2.json"))[1] == b"two"


async def test_a_missing_file_is_looked_for_again_soon(store: MeteredStore) -> None:
    shared = SharedReads()
    one, other = (sharing_cache(store, FOLDER, shared, is_commit, 0.0) for _ in range(2))
    with pytest.raises(FileMissingError):
        await one.fetch(f"{FOLDER}/2.json")
    await store.put(f"{FOLDER}/2.json", b"two")
    assert (await other.fetch(f"{FOLDER}/2.json"))[1] == b"two"


async def test_files_that_are_replaced_are_not_shared(store: MeteredStore) -> None:
    shared = SharedReads()
    one, other = (sharing_cache(store, FOLDER, shared, is_commit, 60.0) for _ in range(2))
    for body in (b"first", b"second"):
        await store.put(f"{FOLDER}/_last_checkpoint", body)
        assert (await one.fetch(f"{FOLDER}/_last_checkpoint"))[1] == body
        assert (await other.fetch(f"{FOLDER}/_last_checkpoint"))[1] == body


async def test_a_failed_fetch_is_repeated_by_those_who_waited(store: MeteredStore) -> None:
    shared, tries = SharedReads(), 0

    class Failing:
        scheme = store.scheme

        async def fetch(self, path: str, start: int = 0, length: int | None = None) -> object:
            nonlocal tries
            tries += 1
            await asyncio.sleep(0)
            if tries == 1:
                raise StorageError("It is down.")
            return await store.fetch(path, start, length)

    await store.put(f"{FOLDER}/1.json", b"one")
    inner = cast(ObjectStore, Failing())
    readers = [sharing_cache(inner, FOLDER, shared, is_commit, 60.0) for _ in range(3)]
    fetches = [each.fetch(f"{FOLDER}/1.json") for each in readers]
    found = await asyncio.gather(*fetches, return_exceptions=True)
    assert isinstance(found[0], StorageError)
    assert [each[1] for each in found[1:] if isinstance(each, tuple)] == [b"one", b"one"]
