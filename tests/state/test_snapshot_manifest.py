"""The stored file list of a snapshot: whole, by ranges, bounded, and noticed when damaged."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tailerd.errors import FileMissingError, OffsetError, StateInUseError, StorageError
from tailerd.formats.delta.changes.snapshot_files import Spool, SpooledFiles
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_entries import entries_of_files
from tailerd.formats.delta.protocol.file_index import Sizes
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.state import snapshot_manifest
from tailerd.state.snapshot_manifest import BUCKET_FILES
from tailerd.storage.memory import MemoryStore
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.owned_state import owned_scratch, scratch_in

VECTOR = DeletionVectorDescriptor(
    storage_type="u", path_or_inline_dv="ab^-aqEH", size_in_bytes=34, cardinality=2, offset=1
)


def make_file(key: int) -> LiveFile:
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

    async def entries(self) -> AsyncIterator[pa.RecordBatch]:
        for start in range(0, len(self._shuffled), 500):
            files = [make_file(key) for key in self._shuffled[start : start + 500]]
            yield entries_of_files(files)


@contextmanager
def small_files() -> Iterator[None]:
    """Let the system refuse larger files while inside: an error like that of a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@dataclass
class Machines:
    """Machines that share a store, or the folder of one; `store` is None for a folder."""

    folder: Path
    store: FaultyStore | None = None
    token: int = 0

    def spool(self, machine: str = "a", token: int = 0) -> Spool:
        """Return the spool of a process, which owns the state until a greater token does."""
        local = self.folder / machine
        scratch = (
            owned_scratch(self.folder / "s")
            if self.store is None
            else scratch_in(self.store, PREFIX, local)
        )
        self.token = max(self.token, token)

        async def require_ownership() -> int:
            if token < self.token:
                raise StateInUseError("Another process owns it.")
            return token

        return Spool(replace(scratch, require_ownership=require_ownership))

    def copies(self, machine: str = "a") -> list[str]:
        """Return the names of the files on a machine."""
        folder = self.folder / ("s" if self.store is None else machine)
        return sorted(path.name for path in folder.glob("*"))

    async def names(self) -> list[str]:
        """Return the names of the stored files."""
        if self.store is None:
            return self.copies()
        return [file.name async for file in self.store.list_from(PREFIX)]

    async def damage(self, name: str, body: bytes | None) -> None:
        """Replace or delete a part of the stored list."""
        [found] = [each for each in await self.names() if each.endswith(f".{name}")]
        if self.store is None:
            path = self.folder / "s" / found
            path.unlink() if body is None else path.write_bytes(body)
        elif body is None:
            await self.store.delete(f"{PREFIX}/{found}")
        else:
            await self.store.put(f"{PREFIX}/{found}", body)


PREFIX = "/state/spool/orders"


@pytest.fixture(params=["folder", "bucket"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Machines:
    return Machines(tmp_path, FaultyStore(MemoryStore()) if request.param == "bucket" else None)


@pytest.fixture
def bucket(tmp_path: Path) -> Machines:
    return Machines(tmp_path, FaultyStore(MemoryStore()))


def store_of(machines: Machines) -> FaultyStore:
    assert machines.store is not None
    return machines.store


async def keys_between(files: SpooledFiles, first: int, until: int | None) -> list[int]:
    return [file.key async for batch in files.between(first, until) for file in batch]


async def found_keys(spool: Spool, table_id: str = "t") -> list[int]:
    files = await spool.find(table_id, 4)
    assert files is not None
    return await keys_between(files, 0, None)


@pytest.mark.parametrize("count", [0, 1, BUCKET_FILES, BUCKET_FILES + 1, 20 * BUCKET_FILES + 17])
async def test_every_range_of_keys_comes_back_whole_and_in_order(
    machines: Machines, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that buckets are written in many turns.
    monkeypatch.setattr(snapshot_manifest, "BUFFER_BYTES", 1_000_000)
    listed = ListedFiles(count)
    await machines.spool("a").write("t", listed)
    files = await machines.spool("b").find("t", 4)
    assert files is not None
    assert [array.tolist() for array in files.sorted_files()] == [
        array.tolist() for array in listed.sorted_files()
    ]
    whole = [file async for batch in files.between(0, None) for file in batch]
    assert whole == [make_file(key) for key in listed.keys]
    assert (files.version, files.timestamp_ms, files.schema) == (
        listed.version,
        listed.timestamp_ms,
        listed.schema,
    )
    source = random.Random(1)
    points = [0, 2**64 - 1, *source.sample(listed.keys, min(8, count))]
    for first in points:
        for until in (*points, None):
            expected = [k for k in listed.keys if first <= k and (until is None or k < until)]
            assert await keys_between(files, first, until) == expected


async def test_many_pipelines_store_lists_at_once(tmp_path: Path) -> None:
    async def write(number: int) -> list[int]:
        spool = Spool(owned_scratch(tmp_path / str(number)))
        return await keys_between(await spool.write("t", ListedFiles(number)), 0, None)

    found = await asyncio.gather(*(write(number) for number in range(200)))
    assert [len(keys) for keys in found] == list(range(200))


async def test_a_range_reads_no_more_than_its_buckets(tmp_path: Path) -> None:
    listed = ListedFiles(6 * BUCKET_FILES)
    files = await Machines(tmp_path).spool().write("t", listed)
    for path in sorted((tmp_path / "s").glob("*.files"))[1:]:
        path.unlink()
    inside = listed.keys[BUCKET_FILES - 10 : BUCKET_FILES]
    assert await keys_between(files, inside[0], inside[-1] + 1) == inside


async def test_a_list_of_another_snapshot_is_none_and_gives_way(machines: Machines) -> None:
    first = machines.spool("a")
    assert await first.find("t", 4) is None
    await first.write("t", ListedFiles(3))
    second = machines.spool("b")
    for _ in range(2):
        assert await second.find("other", 4) is None
    assert await second.find("t", 5) is None
    await second.write("other", ListedFiles(5))
    assert await machines.spool("c").find("t", 4) is None
    assert len(await found_keys(machines.spool("d"), "other")) == 5


async def test_a_new_list_replaces_the_one_before(machines: Machines) -> None:
    spool = machines.spool()
    await spool.write_plan("plan", b"of a difference")
    for count in (5, 9):
        files = await spool.write("t", ListedFiles(count))
        assert len(await keys_between(files, 0, None)) == count
    later = ListedFiles(2)
    later.version = 8
    await spool.write("t", later)
    stems = {name.partition(".")[0] for name in await machines.names()}
    assert stems == {"8", "plan"}
    assert await machines.spool("b").find_plan("plan") == b"of a difference"


async def test_removing_leaves_nothing_anywhere(machines: Machines) -> None:
    await machines.spool("a").write("t", ListedFiles(40))
    again = machines.spool("b")
    assert await again.find_plan("plan") is None
    await again.write_plan("plan", b"1")
    assert len(await found_keys(again)) == 40
    await again.remove()
    assert await machines.names() == machines.copies("b") == []
    assert not (machines.folder / ("s" if machines.store is None else "b")).exists()
    assert await again.find("t", 4) is None
    assert await again.find_plan("plan") is None


async def test_a_process_that_lost_the_state_deletes_and_replaces_no_list(
    machines: Machines,
) -> None:
    former = machines.spool("a", token=1)
    await former.write("t", ListedFiles(3))
    owner = machines.spool("b", token=2)
    assert len(await found_keys(owner)) == 3
    await owner.write("t", ListedFiles(5))
    names = await machines.names()
    steps = (former.write("t", ListedFiles(7)), former.remove(), former.write_plan("p", b""))
    for step in steps:
        with pytest.raises(StateInUseError):
            await step
    # Suspended between the check and the deletion.
    machines.token = 1
    if machines.store is not None:
        await former.remove()
        machines.token = 2
        assert await machines.names() == names
    assert len(await found_keys(machines.spool("c", token=2))) == 5


async def test_what_a_crash_left_half_written_is_not_found(machines: Machines) -> None:
    class Crashing(ListedFiles):
        async def entries(self) -> AsyncIterator[pa.RecordBatch]:
            yield entries_of_files([make_file(self.keys[0])])
            raise KeyboardInterrupt

    spool = machines.spool()
    with pytest.raises(KeyboardInterrupt):
        await spool.write("t", Crashing(9))
    assert await spool.find("t", 4) is None
    files = await spool.write("t", ListedFiles(9))
    assert len(await keys_between(files, 0, None)) == 9


async def test_a_full_disk_gets_back_what_was_written_in_vain(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_manifest, "BUFFER_BYTES", 100_000)
    spool = machines.spool()
    await spool.write("t", ListedFiles(3))
    names = machines.copies()
    with small_files(), pytest.raises(StorageError, match="cannot be stored"):
        await spool.write("t", ListedFiles(2 * BUCKET_FILES))
    assert machines.copies() == names
    assert await found_keys(machines.spool("b")) == ListedFiles(3).keys


async def test_a_full_disk_gets_back_what_was_copied_in_vain(bucket: Machines) -> None:
    await bucket.spool("a").write("t", ListedFiles(BUCKET_FILES))
    other = bucket.spool("b")
    with small_files(), pytest.raises(StorageError, match="cannot be copied"):
        await other.find("t", 4)
    assert bucket.copies("b") == []
    assert await other.find("t", 4) is not None


@pytest.mark.parametrize("batches", [0, 1, 4, 8])
@pytest.mark.parametrize("is_writing", [False, True], ids=["waiting", "writing"])
async def test_a_list_that_is_given_up_is_removed_also_under_a_thread_that_writes_it(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, batches: int, is_writing: bool
) -> None:
    monkeypatch.setattr(snapshot_manifest, "BUFFER_BYTES", 0)
    listed = ListedFiles(BUCKET_FILES)
    given, is_reached = listed.entries, asyncio.Event()

    async def entries() -> AsyncIterator[pa.RecordBatch]:
        number = 0
        async for batch in given():
            if number == batches:
                is_reached.set()
                await asyncio.sleep(0 if is_writing else 3600)
            number += 1
            yield batch

    monkeypatch.setattr(listed, "entries", entries)
    writing = asyncio.create_task(machines.spool().write("t", listed))
    await is_reached.wait()
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    await asyncio.sleep(0.02)
    assert machines.copies() == []


@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_list_whose_writing_failed_is_none_for_the_next(bucket: Machines, nth: int) -> None:
    store_of(bucket).fail_nth(nth, kind="put")
    with pytest.raises(StorageError, match="told it to"):
        await bucket.spool("a").write("t", ListedFiles(40))
    assert await bucket.spool("b").find("t", 4) is None
    await bucket.spool("b").write("t", ListedFiles(9))
    assert len(await found_keys(bucket.spool("c"))) == 9
    assert len(await bucket.names()) == 4


# A list without a manifest was never finished.
PARTS = ("manifest.json", "keys", "sizes", "00000.files")


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("body", [None, b"", b"123"], ids=["missing", "empty", "damaged"])
async def test_a_damaged_list_is_named_in_a_folder_and_made_again_in_a_bucket(
    machines: Machines, name: str, body: bytes | None
) -> None:
    await machines.spool("a").write("t", ListedFiles(50))
    await machines.damage(name, body)
    other = machines.spool("b")
    if name == PARTS[0] and body is None:
        assert await other.find("t", 4) is None
    elif machines.store is None:
        with pytest.raises(OffsetError, match="Remove these files") as caught:
            await found_keys(other)
        assert str(machines.folder / "s/4.") in str(caught.value)
        await other.remove()
    else:
        assert await other.find("t", 4) is None
        assert machines.copies("b") == []
    await other.write("t", ListedFiles(9))
    assert len(await found_keys(machines.spool("c"))) == 9


async def test_a_list_that_is_removed_while_it_is_copied_counts_as_none(bucket: Machines) -> None:
    await bucket.spool("a").write("t", ListedFiles(9))
    store_of(bucket).fail_nth(1, FileMissingError("It is gone."), kind="get", path_part=".keys")
    assert await bucket.spool("b").find("t", 4) is None
    assert bucket.copies("b") == []


async def test_a_damaged_copy_on_this_machine_gives_way_to_the_list(bucket: Machines) -> None:
    spool = bucket.spool("a")
    await spool.write("t", ListedFiles(9))
    [keys] = (bucket.folder / "a").glob("*.keys")
    keys.write_bytes(b"123")
    assert len(await found_keys(spool)) == 9


async def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be stored"):
        await Spool(owned_scratch(tmp_path / "file" / "s")).write("t", ListedFiles(3))
