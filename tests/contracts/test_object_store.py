"""Every clause of `ObjectStore`, against every store of `conftest.py`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import FileExistsAlreadyError, FileMissingError
from tailerd.storage.base import ObjectStore, put_nondurable
from tailerd.storage.memory import MemoryStore
from tailerd.storage.stores import Stores
from tests.clouds.servers import CloudServer
from tests.s3.servers import S3Server


@pytest.fixture
def folder(tmp_path: Path, server: S3Server | CloudServer | None) -> str:
    return f"{tmp_path}/folder" if server is None else f"{server.new_bucket()}/folder"


@pytest.fixture
def clock_step_ms(server: S3Server | CloudServer | None) -> int:
    """How much earlier than it was written a file may be dated."""
    # File systems round down to the tick of the kernel's clock, S3 to the second.
    return 50 if server is None else 1000


async def names(store: ObjectStore, folder: str, start_after: str = "") -> list[str]:
    return [meta.name async for meta in store.list_from(folder, start_after)]


async def fill(store: ObjectStore, folder: str, *file_names: str) -> None:
    for name in file_names:
        await store.put(f"{folder}/{name}", name.encode())


async def test_a_url_leads_back_to_the_file_it_names(store: ObjectStore, folder: str) -> None:
    await fill(store, folder, "a b", "a%20b", "ü")
    stores = Stores()
    if isinstance(store, MemoryStore):
        stores.add(store)
    for name in ("a b", "a%20b", "ü"):
        _, path = stores.locate(store.format_url(f"{folder}/{name}"))
        assert await store.get(path) == name.encode()


@pytest.mark.full
async def test_listing_gives_names_strictly_greater_than_the_start(
    store: ObjectStore, folder: str
) -> None:
    await fill(store, folder, "00.json", "01.json", "02.json")
    assert await names(store, folder, "00.json") == ["01.json", "02.json"]
    assert await names(store, folder, "00.jso") == ["00.json", "01.json", "02.json"]
    assert await names(store, folder, "02.json") == []


async def test_listing_is_ordered_by_the_utf8_bytes_of_the_name(
    store: ObjectStore, folder: str
) -> None:
    # U+FF5E sorts before U+10000 as UTF-8, after it as UTF-16.
    file_names = ["Z", "_last", "a", "a.b", "a0", "é", "～", "\U00010000"]
    await fill(store, folder, *reversed(file_names))
    listed = await names(store, folder)
    assert listed == sorted(file_names, key=lambda name: name.encode())
    assert await names(store, folder, "～") == ["\U00010000"]


async def test_listing_leaves_out_sub_folders_and_what_is_in_them(
    store: ObjectStore, folder: str
) -> None:
    await fill(store, folder, "a", "sub/b", "z")
    assert await names(store, folder) == ["a", "z"]
    assert await names(store, f"{folder}/sub") == ["b"]


async def test_listing_takes_a_folder_with_a_trailing_slash(
    store: ObjectStore, folder: str
) -> None:
    await fill(store, folder, "a")
    assert [meta.path async for meta in store.list_from(folder + "/")] == [f"{folder}/a"]


async def test_listing_a_folder_that_does_not_exist_lists_nothing(
    store: ObjectStore, folder: str
) -> None:
    assert await names(store, folder) == []
    await fill(store, folder, "file")
    assert await names(store, f"{folder}/file") == []


async def test_listing_does_not_confuse_folders_with_a_common_prefix(
    store: ObjectStore, folder: str
) -> None:
    await fill(store, folder, "a")
    await fill(store, folder + "er", "b")
    assert await names(store, folder) == ["a"]


@pytest.mark.full
async def test_every_file_that_existed_before_the_listing_is_listed(
    store: ObjectStore, folder: str, server: S3Server | CloudServer | None
) -> None:
    # More than one page where it comes in pages.
    expected = [f"{n:05}" for n in range(1050 if server is None else server.page_names + 50)]
    await asyncio.gather(*(store.put(f"{folder}/{name}", b"x") for name in expected))
    listing = store.list_from(folder)
    first = await anext(listing)
    await fill(store, folder, "00000a", "99999")
    rest = [meta.name async for meta in listing]
    assert set(expected) <= {first.name, *rest}
    assert rest == sorted(rest)


@pytest.mark.full
async def test_a_file_deleted_during_the_listing_may_be_left_out_but_breaks_nothing(
    store: ObjectStore, folder: str, server: S3Server | CloudServer | None
) -> None:
    # The second page is the test's above: filling a bucket takes its time.
    expected = [f"{number:05}" for number in range(1050 if server is None else 50)]
    await asyncio.gather(*(store.put(f"{folder}/{name}", b"x") for name in expected))
    listing = store.list_from(folder)
    first = await anext(listing)
    await store.delete(f"{folder}/{expected[-2]}")
    seen = [first.name, *[meta.name async for meta in listing]]
    assert set(expected) - set(seen) <= {expected[-2]}


async def test_listing_and_head_tell_size_and_time(
    store: ObjectStore, folder: str, clock_step_ms: int
) -> None:
    before_ms = time.time_ns() // 1_000_000
    await store.put(f"{folder}/a", b"12345")
    [listed] = [meta async for meta in store.list_from(folder)]
    assert (listed.path, listed.size_bytes) == (f"{folder}/a", 5)
    assert before_ms - clock_step_ms <= listed.mtime_ms <= time.time_ns() // 1_000_000
    assert await store.head(f"{folder}/a") == listed


async def test_get_returns_the_whole_file_or_a_range_and_fewer_bytes_at_the_end(
    store: ObjectStore, folder: str
) -> None:
    path = f"{folder}/a"
    await store.put(path, b"0123456789")
    assert await store.get(path) == b"0123456789"
    assert await store.get(path, 3) == b"3456789"
    assert await store.get(path, 3, 4) == b"3456"
    assert await store.get(path, 8, 100) == b"89"
    assert await store.get(path, 0, 0) == b""
    assert await store.get(path, 11) == b""


async def test_fetch_gives_what_get_and_head_give(store: ObjectStore, folder: str) -> None:
    path = f"{folder}/a"
    for size in (0, 10, 100_000):
        whole = bytes(range(250)) * (size // 250) + b"x" * (size % 250)
        await store.put(path, whole)
        meta = await store.head(path)
        assert meta.size_bytes == size
        assert await store.fetch(path) == (meta, whole)
        assert await store.fetch(path, 0, 70_000) == (meta, whole[:70_000])
        assert await store.fetch(path, 3, 4) == (meta, whole[3:7])
        assert await store.fetch(path, 0, 0) == (meta, b"")
    for missing in (f"{folder}/nothing", folder):
        with pytest.raises(FileMissingError):
            await store.fetch(missing)


async def test_an_empty_file_is_a_file(store: ObjectStore, folder: str) -> None:
    await store.put(f"{folder}/empty", b"")
    assert await store.get(f"{folder}/empty") == b""
    assert await store.get_many([f"{folder}/empty"]) == [b""]
    assert (await store.head(f"{folder}/empty")).size_bytes == 0
    assert await names(store, folder) == ["empty"]


async def test_get_many_returns_files_in_the_order_asked_for(
    store: ObjectStore, folder: str
) -> None:
    await fill(store, folder, "a", "b", "c")
    paths = [f"{folder}/{name}" for name in "cabca"]
    assert await store.get_many(paths) == [b"c", b"a", b"b", b"c", b"a"]
    assert await store.get_many([]) == []


@pytest.mark.parametrize("name", ["absent", "absent/deeper", "file/below-a-file"])
async def test_a_file_that_is_not_there_is_reported_as_missing_by_its_name(
    store: ObjectStore, folder: str, name: str
) -> None:
    await fill(store, folder, "file")
    path = f"{folder}/{name}"
    with pytest.raises(FileMissingError, match=r"absent|below-a-file"):
        await store.get(path)
    with pytest.raises(FileMissingError):
        await store.get(path, 1, 2)
    with pytest.raises(FileMissingError, match=r"absent|below-a-file"):
        await store.get_many([f"{folder}/file", path])
    with pytest.raises(FileMissingError):
        await store.head(path)
    with pytest.raises(FileMissingError):
        store.open_input(path)


async def test_a_folder_is_not_a_file(store: ObjectStore, folder: str) -> None:
    await fill(store, folder, "sub/a")
    with pytest.raises(FileMissingError):
        await store.get(f"{folder}/sub")
    with pytest.raises(FileMissingError):
        await store.head(f"{folder}/sub")
    with pytest.raises(FileMissingError):
        store.open_input(f"{folder}/sub")


async def test_put_replaces_a_file_and_makes_folders(store: ObjectStore, folder: str) -> None:
    path = f"{folder}/x/y/z"
    await store.put(path, b"first")
    await store.put(path, b"second")
    assert await store.get(path) == b"second"
    assert await names(store, f"{folder}/x/y") == ["z"]


async def test_readers_see_all_of_a_put_or_nothing(store: ObjectStore, folder: str) -> None:
    path = f"{folder}/a"
    bodies = [bytes([number]) * 2_000_000 for number in range(8)]
    await store.put(path, bodies[0])

    async def write() -> None:
        for body in bodies:
            await store.put(path, body)

    writing = asyncio.create_task(write())
    while not writing.done():
        assert await store.get(path) in bodies
        assert await names(store, folder) == ["a"]
        await asyncio.sleep(0)
    await writing


async def test_exactly_one_of_several_racing_writers_wins(store: ObjectStore, folder: str) -> None:
    async def attempt(number: int) -> int | None:
        try:
            await store.put(f"{folder}/a", str(number).encode(), if_absent=True)
        except FileExistsAlreadyError:
            return None
        return number

    outcomes = await asyncio.gather(*(attempt(number) for number in range(20)))
    [winner] = [number for number in outcomes if number is not None]
    assert await store.get(f"{folder}/a") == str(winner).encode()
    assert await names(store, folder) == ["a"]


async def test_a_conditional_put_that_loses_changes_nothing(
    store: ObjectStore, folder: str
) -> None:
    await store.put(f"{folder}/a", b"first", if_absent=True)
    with pytest.raises(FileExistsAlreadyError, match="exists"):
        await store.put(f"{folder}/a", b"second", if_absent=True)
    assert await store.get(f"{folder}/a") == b"first"


async def test_a_volatile_file_appears_whole_once_and_is_never_replaced(
    store: ObjectStore, folder: str
) -> None:
    async def attempt(number: int) -> int | None:
        try:
            await put_nondurable(store, f"{folder}/a", str(number).encode() * 1000)
        except FileExistsAlreadyError:
            return None
        return number

    won = [number for number in await asyncio.gather(*map(attempt, range(8))) if number is not None]
    assert len(won) == 1
    assert await store.get(f"{folder}/a") == str(won[0]).encode() * 1000
    assert await names(store, folder) == ["a"]


async def test_deleting_a_file_that_does_not_exist_is_no_error(
    store: ObjectStore, folder: str
) -> None:
    await store.delete(f"{folder}/never/was")
    await fill(store, folder, "a", "b")
    await store.delete(f"{folder}/a")
    await store.delete(f"{folder}/a")
    assert await names(store, folder) == ["b"]


async def test_an_opened_file_is_read_at_random_by_pyarrow_and_closes(
    store: ObjectStore, folder: str
) -> None:
    table = pa.table({"id": list(range(1000))})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=100)
    await store.put(f"{folder}/a.parquet", sink.getvalue().to_pybytes())
    opened = store.open_input(f"{folder}/a.parquet")
    with pq.ParquetFile(opened) as file:
        assert file.read_row_group(7).column("id").to_pylist() == list(range(700, 800))
    assert not opened.closed
    opened.close()
    assert opened.closed


async def test_paths_are_taken_literally(store: ObjectStore, folder: str) -> None:
    await fill(store, folder, "a%20b", "a b", "x?y#z")
    assert await store.get(f"{folder}/a%20b") == b"a%20b"
    assert await store.get(f"{folder}/a b") == b"a b"
    assert await names(store, folder) == ["a b", "a%20b", "x?y#z"]


async def test_concurrent_calls_do_not_disturb_each_other(store: ObjectStore, folder: str) -> None:
    async def one(number: int) -> bytes:
        await store.put(f"{folder}/{number}", str(number).encode())
        await names(store, folder)
        return await store.get(f"{folder}/{number}")

    bodies = await asyncio.gather(*(one(number) for number in range(50)))
    assert bodies == [str(number).encode() for number in range(50)]


async def test_a_cancelled_call_leaves_a_store_that_works_and_no_half_file(
    store: ObjectStore, folder: str
) -> None:
    body = b"x" * 4_000_000
    await fill(store, folder, "old")
    for turns in range(4):
        task = asyncio.create_task(store.put(f"{folder}/{turns}", body))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        listing = asyncio.create_task(names(store, folder))
        await asyncio.sleep(0)
        listing.cancel()
        await asyncio.wait([listing])
    assert await store.get(f"{folder}/old") == b"old"
    async for meta in store.list_from(folder):
        assert await store.get(meta.path) in (b"old", body)


async def test_a_listing_abandoned_half_way_leaves_a_store_that_works(
    store: ObjectStore, folder: str
) -> None:
    await fill(store, folder, "a", "b", "c")
    async for meta in store.list_from(folder):
        assert meta.name == "a"
        break
    assert await names(store, folder) == ["a", "b", "c"]


async def test_the_scheme_says_which_urls_the_store_answers_to(store: ObjectStore) -> None:
    assert store.scheme in ("file", "memory", "s3", "box", "az", "gs")
