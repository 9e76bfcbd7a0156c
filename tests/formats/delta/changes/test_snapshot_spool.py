"""The spooled file list of a snapshot: whole, by ranges, bounded, and noticed when damaged."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tailerd.errors import OffsetError, StorageError
from tailerd.formats.delta.changes import snapshot_spool
from tailerd.formats.delta.changes.snapshot_spool import BUCKET_FILES, SnapshotSpool
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_index import Sizes
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile

VECTOR = DeletionVectorDescriptor(
    storage_type="u", path_or_inline_dv="ab^-aqEH", size_in_bytes=34, cardinality=2, offset=1
)


def file_of(key: int) -> LiveFile:
    return LiveFile(
        key=key,
        path=f"d=ö/part-{key}.parquet",
        size_bytes=key % 1000,
        partition_values=(("d", "ö"), ("n", None)),
        modification_time_ms=7,
        num_records=key % 5 or None,
        deletion_vector=VECTOR if key % 3 == 0 else None,
    )


class ListedFiles:
    """A list in memory, in no order."""

    version = 4
    timestamp_ms = 1_700_000_000_000
    schema = TableSchema('{"type":"struct","fields":[]}', ("d",), "name")

    def __init__(self, count: int) -> None:
        source = random.Random(count)
        self.keys = sorted({source.getrandbits(64) for _ in range(count)})
        self._shuffled = source.sample(self.keys, len(self.keys))

    def sorted_files(self) -> tuple[KeyArray, Sizes]:
        sizes = np.array([key % 1000 for key in self.keys], np.int64)
        return np.array(self.keys, np.uint64), sizes

    async def between(self, first_key: int, until_key: int | None) -> AsyncIterator[list[LiveFile]]:
        assert (first_key, until_key) == (0, None)
        for start in range(0, len(self._shuffled), 500):
            yield [file_of(key) for key in self._shuffled[start : start + 500]]


@contextmanager
def small_files() -> Iterator[None]:
    """Let the system refuse larger files while inside: an error like that of a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def keys_between(
    files: snapshot_spool.SpooledFiles, first: int, until: int | None
) -> list[int]:
    return [file.key async for batch in files.between(first, until) for file in batch]


@pytest.mark.parametrize("count", [0, 1, BUCKET_FILES, BUCKET_FILES + 1, 3 * BUCKET_FILES + 17])
async def test_every_range_of_keys_comes_back_whole_and_in_order(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that buckets are written in many turns.
    monkeypatch.setattr(snapshot_spool, "BUFFER_BYTES", 100_000)
    listed = ListedFiles(count)
    await SnapshotSpool(tmp_path / "s").write("t", listed)
    files = await SnapshotSpool(tmp_path / "s").find("t", 4)
    assert files is not None
    assert [array.tolist() for array in files.sorted_files()] == [
        array.tolist() for array in listed.sorted_files()
    ]
    whole = [file async for batch in files.between(0, None) for file in batch]
    assert whole == [file_of(key) for key in listed.keys]
    assert (files.version, files.timestamp_ms, files.schema) == (
        listed.version,
        listed.timestamp_ms,
        listed.schema,
    )
    source = random.Random(1)
    places = [0, 2**64 - 1, *source.sample(listed.keys, min(20, count))]
    for first in places:
        for until in (*places, None):
            expected = [k for k in listed.keys if first <= k and (until is None or k < until)]
            assert await keys_between(files, first, until) == expected


async def test_many_pipelines_spool_at_once(tmp_path: Path) -> None:
    async def spool(number: int) -> list[int]:
        files = await SnapshotSpool(tmp_path / str(number)).write("t", ListedFiles(number))
        return await keys_between(files, 0, None)

    found = await asyncio.gather(*(spool(number) for number in range(200)))
    assert [len(keys) for keys in found] == list(range(200))


async def test_a_range_reads_no_more_than_its_buckets(tmp_path: Path) -> None:
    listed = ListedFiles(6 * BUCKET_FILES)
    files = await SnapshotSpool(tmp_path / "s").write("t", listed)
    for path in sorted((tmp_path / "s/4").glob("*.files"))[1:]:
        path.unlink()
    inside = listed.keys[BUCKET_FILES - 10 : BUCKET_FILES]
    assert await keys_between(files, inside[0], inside[-1] + 1) == inside


async def test_a_spool_of_another_snapshot_is_none(tmp_path: Path) -> None:
    spool = SnapshotSpool(tmp_path / "s")
    assert await spool.find("t", 4) is None
    await spool.write("t", ListedFiles(3))
    assert await spool.find("other", 4) is None
    assert await spool.find("t", 5) is None
    await spool.remove()
    assert not (tmp_path / "s").exists()
    assert await spool.find("t", 4) is None


async def test_a_new_snapshot_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    spool = SnapshotSpool(tmp_path / "s")
    for count in (5, 9):
        files = await spool.write("t", ListedFiles(count))
        assert len(await keys_between(files, 0, None)) == count
    later = ListedFiles(2)
    later.version = 8
    await spool.write("t", later)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["8"]


async def test_what_a_crash_left_half_written_is_not_found(tmp_path: Path) -> None:
    spool = SnapshotSpool(tmp_path / "s")

    class Crashing(ListedFiles):
        async def between(
            self, first_key: int, until_key: int | None
        ) -> AsyncIterator[list[LiveFile]]:
            yield [file_of(self.keys[0])]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await spool.write("t", Crashing(9))
    assert (tmp_path / "s").exists()
    assert await spool.find("t", 4) is None
    files = await spool.write("t", ListedFiles(9))
    assert len(await keys_between(files, 0, None)) == 9


async def test_a_full_disk_gets_back_what_was_written_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_spool, "BUFFER_BYTES", 100_000)
    spool = SnapshotSpool(tmp_path / "s")
    await spool.write("t", ListedFiles(3))
    with small_files(), pytest.raises(StorageError, match="cannot be stored"):
        await spool.write("t", ListedFiles(2 * BUCKET_FILES))
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["4"]
    assert await found_keys(tmp_path / "s") == ListedFiles(3).keys


@pytest.mark.parametrize("batches", [0, 1, 4, 8])
@pytest.mark.parametrize("is_writing", [False, True], ids=["waiting", "writing"])
async def test_a_list_that_is_given_up_is_removed_also_under_a_thread_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, is_writing: bool
) -> None:
    monkeypatch.setattr(snapshot_spool, "BUFFER_BYTES", 0)
    listed = ListedFiles(BUCKET_FILES)
    given, is_reached = listed.between, asyncio.Event()

    async def between(first_key: int, until_key: int | None) -> AsyncIterator[list[LiveFile]]:
        number = 0
        async for batch in given(first_key, until_key):
            if number == batches:
                is_reached.set()
                await asyncio.sleep(0 if is_writing else 3600)
            number += 1
            yield batch

    monkeypatch.setattr(listed, "between", between)
    writing = asyncio.create_task(SnapshotSpool(tmp_path / "s").write("t", listed))
    await is_reached.wait()
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    await asyncio.sleep(0.02)
    assert not list((tmp_path / "s").iterdir())


async def found_keys(folder: Path) -> list[int]:
    files = await SnapshotSpool(folder).find("t", 4)
    assert files is not None
    return await keys_between(files, 0, None)


# A folder without a manifest was never finished.
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage)
        for name in ("manifest.json", "keys", "sizes", "00000.files")
        for damage in ("cut off", "empty", "gone")
        if (name, damage) != ("manifest.json", "gone")
    ],
)
async def test_a_damaged_spool_is_named_with_the_way_out(
    tmp_path: Path, name: str, damage: str
) -> None:
    await SnapshotSpool(tmp_path / "s").write("t", ListedFiles(50))
    path = tmp_path / "s/4" / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-5] if damage == "cut off" else b"")
    with pytest.raises(OffsetError, match="Remove the folder") as caught:
        await found_keys(tmp_path / "s")
    assert str(tmp_path / "s/4") in str(caught.value)


async def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be stored"):
        await SnapshotSpool(tmp_path / "file" / "s").write("t", ListedFiles(3))
