"""The file list of a snapshot in a bucket: found by another machine, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.errors import FileMissingError, StorageError
from tailerd.formats.delta.changes.bucket_spool import BucketSpool
from tailerd.formats.delta.changes.snapshot_spool import BUCKET_FILES
from tailerd.storage.base import ObjectStore
from tailerd.storage.memory import MemoryStore
from tests.doubles.faulty_store import FaultyStore
from tests.formats.delta.changes.test_snapshot_spool import ListedFiles, file_of, small_files

FOLDER = "/state/spool/orders"


def spool_on(machine: Path, store: ObjectStore) -> BucketSpool:
    async def nobody_else() -> None:
        return

    return BucketSpool(store, FOLDER, machine / "orders", check_held=nobody_else)


async def names(store: ObjectStore) -> list[str]:
    return [file.name async for file in store.list_from(FOLDER)]


@pytest.mark.parametrize("count", [0, 1, 20 * BUCKET_FILES + 17])
async def test_another_machine_finds_the_whole_list(tmp_path: Path, count: int) -> None:
    store, listed = MemoryStore(), ListedFiles(count)
    await spool_on(tmp_path / "a", store).write("t", listed)
    files = await spool_on(tmp_path / "b", store).find("t", 4)
    assert files is not None
    whole = [file async for batch in files.between(0, None) for file in batch]
    assert whole == [file_of(key) for key in listed.keys]


async def test_a_list_of_another_snapshot_is_none_and_gives_way(tmp_path: Path) -> None:
    store = MemoryStore()
    first = spool_on(tmp_path / "a", store)
    assert await first.find("t", 4) is None
    await first.write("t", ListedFiles(3))
    second = spool_on(tmp_path / "b", store)
    for _ in range(2):
        assert await second.find("other", 4) is None
    assert await second.find("t", 5) is None
    await second.write("other", ListedFiles(5))
    assert await spool_on(tmp_path / "c", store).find("t", 4) is None
    assert await spool_on(tmp_path / "d", store).find("other", 4) is not None


async def test_removing_leaves_nothing_anywhere(tmp_path: Path) -> None:
    store = MemoryStore()
    await spool_on(tmp_path / "a", store).write("t", ListedFiles(40))
    again = spool_on(tmp_path / "b", store)
    assert await again.find("t", 4) is not None
    await again.remove()
    assert await names(store) == []
    assert not (tmp_path / "b/orders").exists()
    assert await again.find("t", 4) is None


async def test_a_full_disk_gets_back_what_was_copied_in_vain(tmp_path: Path) -> None:
    store = MemoryStore()
    await spool_on(tmp_path / "a", store).write("t", ListedFiles(BUCKET_FILES))
    other = spool_on(tmp_path / "b", store)
    with small_files(), pytest.raises(StorageError, match="cannot be copied"):
        await other.find("t", 4)
    assert list((tmp_path / "b/orders").iterdir()) == []
    assert await other.find("t", 4) is not None


@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_list_whose_writing_failed_is_none_for_the_next(tmp_path: Path, nth: int) -> None:
    faulty = FaultyStore(MemoryStore())
    faulty.fail_nth(nth, kind="put")
    with pytest.raises(StorageError, match="told it to"):
        await spool_on(tmp_path / "a", faulty).write("t", ListedFiles(40))
    assert await spool_on(tmp_path / "b", faulty).find("t", 4) is None
    await spool_on(tmp_path / "b", faulty).write("t", ListedFiles(9))
    files = await spool_on(tmp_path / "c", faulty).find("t", 4)
    assert files is not None
    assert len(files.sorted_files()[0]) == 9


@pytest.mark.parametrize("lost", ["keys", "sizes", "00000.files", "00001.files"])
@pytest.mark.parametrize("body", [None, b"123"], ids=["missing", "damaged"])
async def test_a_list_that_is_not_whole_counts_as_none_and_is_made_again(
    tmp_path: Path, lost: str, body: bytes | None
) -> None:
    store = MemoryStore()
    await spool_on(tmp_path / "a", store).write("t", ListedFiles(BUCKET_FILES + 9))
    path = f"{FOLDER}/4.{lost}"
    await (store.delete(path) if body is None else store.put(path, body))
    other = spool_on(tmp_path / "b", store)
    assert await other.find("t", 4) is None
    assert list((tmp_path / "b/orders").iterdir()) == []
    await other.write("t", ListedFiles(9))
    files = await spool_on(tmp_path / "c", store).find("t", 4)
    assert files is not None
    assert len(files.sorted_files()[0]) == 9


async def test_a_list_that_is_removed_while_it_is_copied_counts_as_none(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    await spool_on(tmp_path / "a", store).write("t", ListedFiles(9))
    store.fail_nth(1, FileMissingError("It is gone."), kind="get", path_part="4.keys")
    other = spool_on(tmp_path / "b", store)
    assert await other.find("t", 4) is None
    assert list((tmp_path / "b/orders").iterdir()) == []


async def test_a_damaged_copy_on_this_machine_gives_way_to_the_list(tmp_path: Path) -> None:
    store = MemoryStore()
    spool = spool_on(tmp_path / "a", store)
    await spool.write("t", ListedFiles(9))
    (tmp_path / "a/orders/4/keys").write_bytes(b"123")
    assert await spool.find("t", 4) is not None
