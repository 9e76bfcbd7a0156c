"""The file list of a snapshot, so that a restart no longer needs the table's log.

A list is a group of files whose names begin with `<version>.<token>.<random>.`; the token is the
owner's. The manifest is written last, so a list is either complete or absent:

    manifest.json       table and version of the list, and what its source adds
    keys sizes          key and bytes of every file, ascending by key, 64 bit each
    00000.files ...     descriptions, one file for every `BUCKET_FILES` keys: Arrow batches

The log has descriptions in its own order; each is put into the bucket of its key. So a range of
keys is read from the buckets it overlaps, and writing and reading hold only a few buckets in
memory. In another store than this machine's, lists are copied to this machine to be read.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.errors import AccessDeniedError, FileMissingError, OffsetError, StorageError
from tailerd.private_files import make_private_folder, open_private, write_private
from tailerd.state.base import ScratchLocation
from tailerd.storage.posix_files import sync_file
from tailerd.threads import in_thread, release_memory

Keys = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.int64]
T = TypeVar("T")

FORMAT = 2
BUCKET_FILES = 4096
BUFFER_BYTES = 8 * 1024 * 1024
_KEY = "key"
_COPIES = 3
"""Of buffered descriptions: as they came, in one table, and sorted."""
_MANIFEST = "manifest.json"
_KEYS = "keys"
_SIZES = "sizes"
_FRESH = ".fresh"
_NAME = re.compile(r"(\d+\.(\d{20})\.[0-9a-f]{8}\.)(.+)", re.ASCII)
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How descriptions are written and read.

    Attributes:
        schema: Of their columns; `key` is an unsigned number of 64 bit.
        decode: Returns rows of the schema as objects, in their order.
    """

    schema: pa.Schema
    decode: Callable[[pa.RecordBatch], list[T]]


class Listing(Protocol):
    """A list to be written."""

    def sorted_files(self) -> tuple[Keys, Sizes]:
        """Return keys, ascending, and sizes of all files."""
        ...

    def entries(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield all descriptions, in any order and in batches of bounded length."""
        ...


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    table_id: str
    version: int
    count: int
    details: Any


class StoredList(Generic[T]):
    """A complete list on this machine.

    Attributes:
        details: What its source added.
    """

    def __init__(self, folder: Path, stem: str, manifest: _Manifest, codec: Codec[T]) -> None:
        self.details = manifest.details
        self._path = folder / stem
        self._codec = codec
        self._keys: Keys = _map_numbers(self._part(_KEYS), np.dtype("<u8"), manifest.count)
        self._sizes: Sizes = _map_numbers(self._part(_SIZES), np.dtype("<i8"), manifest.count)
        self._bounds = np.array(self._keys[::BUCKET_FILES])
        self._cached = (-1, _sort([], codec.schema))

    def _part(self, name: str) -> Path:
        return self._path.with_name(self._path.name + name)

    def sorted_files(self) -> tuple[Keys, Sizes]:
        """Return keys, ascending, and sizes of all files; they stay on disk."""
        return self._keys, self._sizes

    async def between(self, first_key: int, until_key: int | None) -> AsyncIterator[list[T]]:
        """Yield the descriptions with first_key <= key < until_key, ascending.

        Raises:
            OffsetError: The list is damaged.
        """
        bucket = max(0, int(np.searchsorted(self._bounds, np.uint64(first_key), "right")) - 1)
        for number in range(bucket, len(self._bounds)):
            if until_key is not None and int(self._bounds[number]) >= until_key:
                return
            yield await asyncio.to_thread(self._read_range, number, first_key, until_key)

    def _read_range(self, number: int, first_key: int, until_key: int | None) -> list[T]:
        keys = self._keys[number * BUCKET_FILES : (number + 1) * BUCKET_FILES]
        start = int(np.searchsorted(keys, np.uint64(first_key)))
        end = len(keys)
        if until_key is not None:
            end = int(np.searchsorted(keys, np.uint64(until_key)))
        # Once: another thread may replace it.
        cached = self._cached
        if cached[0] != number:
            self._cached = cached = (number, self._read_bucket(number, keys))
        return self._codec.decode(cached[1].slice(start, end - start))

    def _read_bucket(self, number: int, keys: Keys) -> pa.RecordBatch:
        try:
            content = self._part(_bucket_name(number)).read_bytes()
            batches = [
                pa.ipc.read_record_batch(chunk, self._codec.schema) for chunk in _chunks(content)
            ]
            for batch in batches:
                batch.validate(full=True)
            entries = _sort(batches, self._codec.schema)
            if not np.array_equal(entries.column(_KEY).to_numpy(), keys):
                raise ValueError("it lacks files")
        except (OSError, EOFError, ValueError, pa.ArrowException) as error:
            raise _explain_damage(self._path, error) from error
        return entries


class SnapshotManifests(Generic[T]):
    """The list of one pipeline's snapshot, and plans next to it, in a folder that it may empty.

    A process deletes lists of its own and of former owners; never those of a later one.

    Args:
        scratch: Where.
        codec: Of its descriptions.
    """

    def __init__(self, scratch: ScratchLocation, codec: Codec[T]) -> None:
        self._store = scratch.store
        self._prefix = scratch.prefix
        self._folder = scratch.folder
        self._require_ownership = scratch.require_ownership
        self._is_here = scratch.store.is_local_folder
        self._codec = codec
        self._may_exist = True

    async def find(self, table_id: str, version: int) -> StoredList[T] | None:
        """Return the list of a snapshot; None if there is none that is complete.

        Raises:
            OffsetError: It is damaged, and in this machine's folder.
            StorageError: The store cannot be read, or the local disk cannot be written.
        """
        try:
            found = await in_thread(self._find_here, table_id, version)
        except OffsetError:
            if self._is_here:
                raise
            found = None
        if found is not None or self._is_here or not await self._fetch(version):
            return found
        try:
            found = await in_thread(self._find_here, table_id, version)
            if found is not None:
                # Missing parts are detected before any of it is delivered.
                async for _ in found.between(0, None):
                    pass
        except OffsetError:
            # Another process removed it meanwhile. The caller writes it again.
            await in_thread(self._drop, f"{version}.")
            return None
        return found

    def _find_here(self, table_id: str, version: int) -> StoredList[T] | None:
        for path in sorted(self._folder.glob(f"{version}.*.{_MANIFEST}"), reverse=True):
            stem = path.name.removesuffix(_MANIFEST)
            try:
                manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
                if manifest.format != FORMAT:
                    found = manifest.format
                    raise ValueError(f"it has format {found}, this release reads {FORMAT}")
                if (manifest.table_id, manifest.version) == (table_id, version):
                    return StoredList(self._folder, stem, manifest, self._codec)
            except (OSError, ValueError, EOFError, msgspec.MsgspecError, RecursionError) as error:
                raise _explain_damage(path.with_name(stem), error) from error
        return None

    async def write(
        self, table_id: str, version: int, listing: Listing, details: object
    ) -> StoredList[T]:
        """Store a list durably; it replaces any previous one.

        Args:
            details: JSON values that `StoredList.details` has later.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The store or the local disk cannot be written.
            TailerdError: The list cannot be read.
        """
        self._may_exist = True
        token = await self._require_ownership()
        stem = f"{version}.{token:020}.{secrets.token_hex(4)}."
        schema = self._codec.schema
        writer = _Writer(self._folder / _FRESH, listing.sorted_files(), schema)
        try:
            await in_thread(writer.begin)
            async for batch in listing.entries():
                await in_thread(writer.add, batch)
            names = await in_thread(writer.finish, stem, is_durable=self._is_here)
            if not self._is_here:
                for some in _split(names):
                    await _run_all(self._upload(name) for name in some)
            manifest = _Manifest(FORMAT, table_id, version, writer.count, details)
            body = msgspec.json.encode(manifest)
            await self._require_ownership()
            await self._store.put(f"{self._prefix}/{stem}{_MANIFEST}", body)
            if not self._is_here:
                await in_thread(write_private, self._folder / f"{stem}{_MANIFEST}", body)
        except BaseException as error:
            # Free the space: the disk may be full.
            await in_thread(writer.discard)
            await in_thread(self._drop, stem)
            if isinstance(error, OSError):
                raise _unwritable(self._folder, error) from error
            raise
        await self._delete(retained=stem, is_plan_retained=True)
        return StoredList(self._folder, stem, manifest, self._codec)

    async def find_plan(self, name: str) -> bytes | None:
        """Return what `write_plan` wrote; None if there is nothing.

        Raises:
            StorageError: It cannot be read.
        """
        try:
            return await self._store.get(f"{self._prefix}/{name}")
        except FileMissingError:
            return None

    async def write_plan(self, name: str, body: bytes) -> None:
        """Store one file durably next to the list, until everything is removed.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: It cannot be written.
        """
        self._may_exist = True
        await self._require_ownership()
        await self._store.put(f"{self._prefix}/{name}", body)

    async def remove(self) -> None:
        """Remove everything.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The store cannot be listed, or files cannot be deleted.
        """
        if not self._may_exist:
            return
        if self._is_here:
            await self._require_ownership()
        else:
            await self._delete()
        await in_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._may_exist = False

    async def _delete(self, retained: str = "", *, is_plan_retained: bool = False) -> None:
        """Delete lists of this and former owners, manifests first, and perhaps the plans."""
        names = [file.name async for file in self._store.list_from(self._prefix)]
        names.sort(key=lambda name: not name.endswith(f".{_MANIFEST}"))
        for some in _split(names):
            # As late as possible: a process that stalls after this check deletes one chunk at most.
            token = await self._require_ownership()
            old = [name for name in some if _is_old(name, token, retained, is_plan_retained)]
            await _run_all(self._store.delete(f"{self._prefix}/{name}") for name in old)
        if not self._is_here:
            await in_thread(self._drop, "", retained)

    async def _upload(self, name: str) -> None:
        body = await in_thread((self._folder / name).read_bytes)
        await self._store.put(f"{self._prefix}/{name}", body)

    async def _fetch(self, version: int) -> bool:
        """Copy the newest complete list of a version to this machine; False if there is none."""
        names = [file.name async for file in self._store.list_from(self._prefix)]
        names = [name for name in names if name.startswith(f"{version}.")]
        manifests = [name for name in names if name.endswith(f".{_MANIFEST}")]
        if not manifests:
            return False
        stem = max(manifests).removesuffix(_MANIFEST)
        # The manifest comes last, so that a copy is complete or not found.
        names = [name for name in names if name.startswith(stem) and name not in manifests]
        try:
            await in_thread(make_private_folder, self._folder)
            for some in [*_split(names), [f"{stem}{_MANIFEST}"]]:
                bodies = await self._store.get_many([f"{self._prefix}/{name}" for name in some])
                for name, body in zip(some, bodies, strict=True):
                    await in_thread(write_private, self._folder / name, body)
        except FileMissingError:
            # Removed after it was listed.
            await in_thread(self._drop, stem)
            return False
        except OSError as error:
            await in_thread(self._drop, stem)
            raise StorageError(
                f"The file list of a snapshot cannot be copied to {self._folder}:"
                f" {error.strerror}.",
                remedy="Free space, or set TMPDIR to a folder this user can write.",
            ) from error
        return True

    def _drop(self, stem: str, retained: str = "") -> None:
        """Delete the files of a list on this machine, or of all but one list."""
        for path in self._folder.glob(f"{stem}*"):
            if _NAME.fullmatch(path.name) and not (retained and path.name.startswith(retained)):
                path.unlink(missing_ok=True)


class _Writer:
    """Sorts descriptions into buckets, buffering a bounded number of bytes. Blocking.

    A cancelled caller need not wait for the writer's thread: after `discard` nothing is written.
    """

    def __init__(self, folder: Path, files: tuple[Keys, Sizes], schema: pa.Schema) -> None:
        self._folder = folder
        self._keys, self._sizes = files
        self._schema = schema
        self.count = len(self._keys)
        self._bounds = self._keys[::BUCKET_FILES]
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._using = threading.Lock()
        self._is_over = False

    def begin(self) -> None:
        """Create the folder, empty."""
        with self._using:
            if not self._is_over:
                shutil.rmtree(self._folder, ignore_errors=True)
                make_private_folder(self._folder)

    def add(self, entries: pa.RecordBatch) -> None:
        """Add descriptions."""
        with self._using:
            self._waiting.append(entries)
            self._waiting_bytes += entries.nbytes
            if self._waiting_bytes > BUFFER_BYTES and not self._is_over:
                self._flush()

    def finish(self, stem: str, *, is_durable: bool) -> list[str]:
        """Move everything to its final names; return them. The caller writes the manifest.

        Args:
            stem: What all names begin with.
            is_durable: Whether the files must survive a power failure once the manifest does.
        """
        names: list[str] = []
        with self._using:
            if self._is_over:
                return names
            self._flush()
            write_private(self._folder / _KEYS, self._keys.astype("<u8").tobytes())
            write_private(self._folder / _SIZES, self._sizes.astype("<i8").tobytes())
            for path in sorted(self._folder.iterdir()):
                if is_durable:
                    sync_file(path)
                names.append(f"{stem}{path.name}")
                path.rename(self._folder.parent / names[-1])
            self._folder.rmdir()
        return names

    def discard(self) -> None:
        """Remove unfinished files; finished lists stay."""
        with self._using:
            self._is_over = True
            shutil.rmtree(self._folder, ignore_errors=True)

    def _flush(self) -> None:
        entries = _sort(self._waiting, self._schema)
        cuts = np.searchsorted(entries.column(_KEY).to_numpy(), self._bounds).tolist()
        for bucket, (start, end) in enumerate(pairwise([*cuts, entries.num_rows])):
            if start < end:
                chunk = entries.slice(start, end - start).serialize()
                with open_private(self._folder / _bucket_name(bucket), "ab") as file:
                    file.write(chunk.size.to_bytes(8, "big"))
                    file.write(chunk)
        release_memory(_COPIES * self._waiting_bytes)
        self._waiting.clear()
        self._waiting_bytes = 0


def _sort(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of batches in one, ascending by key."""
    rows = pa.Table.from_batches(batches, schema)
    order = np.argsort(rows.column(_KEY).to_numpy(), kind="stable")
    empty = pa.RecordBatch.from_pylist([], schema)
    [found] = rows.take(order).combine_chunks().to_batches() or [empty]
    return found


def _map_numbers(path: Path, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """Return a file of numbers as an array that stays on disk.

    Not a `.npy`: numpy parses its header as Python, which is not thread-safe in CPython 3.11
    (cpython#106905).

    Raises:
        ValueError: The file has another length.
    """
    size_bytes = path.stat().st_size
    if size_bytes != count * kind.itemsize:
        raise ValueError(f"{path.name} has {size_bytes} bytes for {count} files")
    # An empty file cannot be mapped.
    return np.memmap(path, kind, "r", shape=(count,)) if count else np.empty(0, kind)


def _bucket_name(number: int) -> str:
    return f"{number:05d}.files"


def _chunks(content: bytes) -> Iterator[memoryview]:
    view, at = memoryview(content), 0
    while at < len(view):
        length = int.from_bytes(view[at : at + 8], "big")
        yield view[at + 8 : at + 8 + length]
        at += 8 + length


def _is_old(name: str, token: int, retained: str, is_plan_retained: bool) -> bool:
    """Return whether a file is of a list that the owner of `token` may delete, or of a plan."""
    match = _NAME.fullmatch(name)
    if match is None:
        return not is_plan_retained
    return int(match[2]) <= token and match[1] != retained


def _split(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]


async def _run_all(steps: Iterable[Coroutine[object, object, None]]) -> None:
    """Run coroutines concurrently; the first error is raised unwrapped and cancels the others."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _unwritable(folder: Path, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"The file list of a snapshot cannot be stored in {folder}: {error.strerror}.",
        remedy="Free space, or give this user the right to write there.",
    )


def _explain_damage(path: Path, error: Exception) -> OffsetError:
    return OffsetError(
        f"The file list of a snapshot in {path}* is damaged: {error}.",
        remedy="Remove these files: the list is rebuilt as long as the log has that version.",
    )
