"""The file list of a snapshot on local disk, so that a restart no longer needs its log.

A spool is one folder, named by the version, that is published atomically:

    manifest.json       table and version of the list, and the schema its rows are read with
    keys sizes          key and bytes of every live file, ascending by key, 64 bit each
    00000.files ...     descriptions, one file for every `BUCKET_FILES` keys

The log has descriptions in its own order; each is put into the bucket of its key. So a range of
keys is read from the buckets it overlaps, and writing and reading hold only a few buckets in
memory.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tailerd.errors import AccessDeniedError, OffsetError, StorageError
from tailerd.formats.delta.changes.snapshot_files import SnapshotFiles
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_index import Sizes
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.private_files import make_private_folder, open_private, write_private
from tailerd.storage.posix_files import replace_private, sync_file, sync_folder
from tailerd.threads import in_thread

FORMAT = 1
BUCKET_FILES = 4096
BUFFER_BYTES = 8 * 1024 * 1024
MANIFEST = "manifest.json"
_KEYS = "keys"
_SIZES = "sizes"
_FRESH = ".fresh"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[LiveFile])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    format: int
    table_id: str
    version: int
    timestamp_ms: int
    count: int
    schema: dict[str, object]


class SpooledFiles:
    """A spooled list; see `SnapshotFiles`."""

    def __init__(self, folder: Path, manifest: _Manifest) -> None:
        self._folder = folder
        self.version = manifest.version
        self.timestamp_ms = manifest.timestamp_ms
        self.schema = msgspec.convert(manifest.schema, TableSchema)
        self._keys: KeyArray = _mapped(folder / _KEYS, np.dtype("<u8"), manifest.count)
        self._sizes: Sizes = _mapped(folder / _SIZES, np.dtype("<i8"), manifest.count)
        self._bounds = np.array(self._keys[::BUCKET_FILES])
        self._cached: tuple[int, list[LiveFile]] = (-1, [])

    def sorted_files(self) -> tuple[KeyArray, Sizes]:
        """Return keys, ascending, and sizes of all files; they stay on disk."""
        return self._keys, self._sizes

    async def between(self, first_key: int, until_key: int | None) -> AsyncIterator[list[LiveFile]]:
        """Yield the files with first_key <= key < until_key, ascending.

        Raises:
            OffsetError: The spool is damaged.
        """
        bucket = max(0, int(np.searchsorted(self._bounds, np.uint64(first_key), "right")) - 1)
        for number in range(bucket, len(self._bounds)):
            if until_key is not None and int(self._bounds[number]) >= until_key:
                return
            files = await asyncio.to_thread(self._bucket, number)
            yield [
                file
                for file in files
                if first_key <= file.key and (until_key is None or file.key < until_key)
            ]

    def _bucket(self, number: int) -> list[LiveFile]:
        if self._cached[0] == number:
            return self._cached[1]
        try:
            content = _bucket_path(self._folder, number).read_bytes()
            files = [file for chunk in _chunks(content) for file in _decoder.decode(chunk)]
            expected = self._keys[number * BUCKET_FILES : (number + 1) * BUCKET_FILES]
            files.sort(key=lambda file: file.key)
            if [file.key for file in files] != expected.tolist():
                raise ValueError("it lacks files")
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise _damaged(self._folder, error) from error
        self._cached = (number, files)
        return files


class Spool(Protocol):
    """Keeps the file list of one pipeline's snapshot across restarts."""

    async def find(self, table_id: str, version: int) -> SpooledFiles | None:
        """Return the spooled list of this snapshot; None if there is none."""
        ...

    async def write(self, table_id: str, files: SnapshotFiles) -> SpooledFiles:
        """Spool a snapshot durably, replacing any previous one."""
        ...

    async def find_plan(self, name: str) -> bytes | None:
        """Return what `write_plan` wrote; None if there is nothing.

        Raises:
            StorageError: It cannot be read.
        """
        ...

    async def write_plan(self, name: str, body: bytes) -> None:
        """Store one file durably alongside the list, until everything is removed.

        Raises:
            StorageError: It cannot be written.
        """
        ...

    async def remove(self) -> None:
        """Remove everything."""
        ...


class SnapshotSpool:
    """The spool of one pipeline, in its own folder, which it may remove."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._may_exist = True

    async def find(self, table_id: str, version: int) -> SpooledFiles | None:
        """Return the spooled list of this snapshot; None if there is none.

        Raises:
            OffsetError: It is damaged.
        """
        return await asyncio.to_thread(self._find, table_id, version)

    async def write(self, table_id: str, files: SnapshotFiles) -> SpooledFiles:
        """Spool a snapshot durably, replacing any previous one.

        Raises:
            StorageError: The folder cannot be written.
            TableError: The log cannot be read.
        """
        self._may_exist = True
        writer = _Writer(self._folder / _FRESH, files.sorted_files())
        try:
            await self._spool(writer, table_id, files)
        except OSError as error:
            raise _unwritable("The file list of a snapshot", self._folder, error) from error
        found = await self.find(table_id, files.version)
        if found is None:
            raise StorageError(f"The spool {self._folder} was removed while it was written.")
        return found

    async def _spool(self, writer: _Writer, table_id: str, files: SnapshotFiles) -> None:
        try:
            await in_thread(writer.begin)
            async for batch in files.between(0, None):
                await in_thread(writer.add, batch)
            manifest = _Manifest(
                format=FORMAT,
                table_id=table_id,
                version=files.version,
                timestamp_ms=files.timestamp_ms,
                count=writer.count,
                schema=msgspec.to_builtins(files.schema),
            )
            await in_thread(writer.finish, manifest)
        except BaseException:
            # Free the space: the disk may be full.
            await in_thread(writer.discard)
            raise

    async def find_plan(self, name: str) -> bytes | None:
        """Return what `write_plan` wrote; None if there is nothing.

        Raises:
            StorageError: It cannot be read.
        """
        try:
            return await asyncio.to_thread((self._folder / name).read_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(
                f"The plan of a difference in {self._folder} cannot be read: {error.strerror}.",
                remedy="Give this user the right to read there.",
            ) from error

    async def write_plan(self, name: str, body: bytes) -> None:
        """Store one file durably alongside the list, until everything is removed.

        Raises:
            StorageError: The folder cannot be written.
        """
        self._may_exist = True
        try:
            await in_thread(make_private_folder, self._folder)
            await in_thread(replace_private, self._folder / name, body)
        except OSError as error:
            raise _unwritable("The plan of a difference", self._folder, error) from error

    async def remove(self) -> None:
        """Remove everything; files that cannot be removed are replaced by the next snapshot."""
        if self._may_exist:
            await in_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._may_exist = False

    def _find(self, table_id: str, version: int) -> SpooledFiles | None:
        folder = self._folder / str(version)
        try:
            content = (folder / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _damaged(folder, error) from error
        try:
            manifest = msgspec.json.decode(content, type=_Manifest)
            if manifest.format != FORMAT:
                raise ValueError(f"it has format {manifest.format}, this release reads {FORMAT}")
            if (manifest.table_id, manifest.version) != (table_id, version):
                return None
            return SpooledFiles(folder, manifest)
        except (OSError, ValueError, EOFError, msgspec.MsgspecError, RecursionError) as error:
            raise _damaged(folder, error) from error


class _Writer:
    """Sorts descriptions into buckets, buffering a bounded number of bytes. Blocking.

    A cancelled caller need not wait for the writer's thread: after `discard` nothing is written.
    """

    def __init__(self, folder: Path, files: tuple[KeyArray, Sizes]) -> None:
        self._folder = folder
        self._keys, self._sizes = files
        self.count = len(self._keys)
        self._bounds = self._keys[::BUCKET_FILES]
        self._buffers: dict[int, list[LiveFile]] = {}
        self._buffered_bytes = 0
        self._using = threading.Lock()
        self._is_over = False

    def begin(self) -> None:
        """Create the folder, empty."""
        with self._using:
            if not self._is_over:
                shutil.rmtree(self._folder, ignore_errors=True)
                make_private_folder(self._folder)

    def add(self, files: list[LiveFile]) -> None:
        """Add descriptions."""
        keys = np.fromiter((file.key for file in files), np.uint64, len(files))
        buckets = np.searchsorted(self._bounds, keys, "right") - 1
        with self._using:
            for bucket, file in zip(buckets.tolist(), files, strict=True):
                self._buffers.setdefault(bucket, []).append(file)
                self._buffered_bytes += 200 + len(file.path)
            if self._buffered_bytes > BUFFER_BYTES and not self._is_over:
                self._flush()

    def finish(self, manifest: _Manifest) -> None:
        """Make everything durable, the manifest last, and publish it in place of earlier lists."""
        with self._using:
            if not self._is_over:
                self._write(manifest)
                self._publish(manifest.version)

    def discard(self) -> None:
        """Remove what was written; a published list stays."""
        with self._using:
            self._is_over = True
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, manifest: _Manifest) -> None:
        self._flush()
        write_private(self._folder / _KEYS, self._keys.astype("<u8").tobytes())
        write_private(self._folder / _SIZES, self._sizes.astype("<i8").tobytes())
        for path in self._folder.iterdir():
            sync_file(path)
        manifest_path = self._folder / MANIFEST
        write_private(manifest_path, json.dumps(asdict(manifest)).encode())
        sync_file(manifest_path)
        sync_folder(self._folder)

    def _publish(self, version: int) -> None:
        place = self._folder.parent
        for old in place.iterdir():
            # The plan of a difference stays until its step is delivered, or given up.
            if old != self._folder and old.is_dir():
                shutil.rmtree(old)
        self._folder.rename(place / str(version))
        sync_folder(place)

    def _flush(self) -> None:
        for bucket, files in self._buffers.items():
            chunk = _encoder.encode(files)
            with open_private(_bucket_path(self._folder, bucket), "ab") as file:
                file.write(len(chunk).to_bytes(8, "big") + chunk)
        self._buffers.clear()
        self._buffered_bytes = 0


def _mapped(path: Path, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
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


def _bucket_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.files"


def _chunks(content: bytes) -> Iterator[memoryview]:
    view, at = memoryview(content), 0
    while at < len(view):
        length = int.from_bytes(view[at : at + 8], "big")
        yield view[at + 8 : at + 8 + length]
        at += 8 + length


def _unwritable(what: str, folder: Path, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"{what} cannot be stored in {folder}: {error.strerror}.",
        remedy="Free space, or give this user the right to write there.",
    )


def _damaged(folder: Path, error: Exception) -> OffsetError:
    return OffsetError(
        f"The file list of a snapshot in {folder} is damaged: {error}.",
        remedy="Remove the folder: the list is rebuilt as long as the log has that version.",
    )
