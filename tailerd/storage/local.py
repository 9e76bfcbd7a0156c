"""Files of this machine: absolute POSIX paths.

Calls block, so they run in worker threads, but for one exception: a hop to a thread and back costs
twenty times as much as looking at a small file on a local disk. Where the file system is known to
answer at once (`mounts`), `head` and small `get`s are therefore done in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from tailerd.errors import FileMissingError
from tailerd.storage import posix_files as files
from tailerd.storage.base import FileMeta, FolderMark
from tailerd.storage.mounts import answers_at_once
from tailerd.storage.output import Output

T = TypeVar("T")

_STAT_CHUNK = 1024
_MAX_FOLDERS = 4096


class LocalStore:
    """The local file system as an object store.

    Paths are absolute and used as they are: symbolic links are followed, nothing is decoded.
    """

    scheme: str = "file"

    def __init__(self) -> None:
        """Know nothing yet of any folder."""
        self._answers_at_once: dict[str, bool] = {}

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List as `ObjectStore.list_from` says; the loop is never held, however many files."""
        metas, names = await _in_thread(lambda: _first_files(folder, start_after), folder)
        for meta in metas:
            yield meta
        for first in range(0, len(names), _STAT_CHUNK):
            look = partial(files.stat_all, folder, names[first : first + _STAT_CHUNK])
            for meta in await _in_thread(look, folder):
                yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes, or `length` of them from `start`; fewer at the end."""
        if start or length is not None:
            return await _in_thread(lambda: files.read_range(path, start, length), path)
        if await self._is_prompt(path):
            with _mapped_errors(path):
                body = files.read_small_file(path)
            if body is not None:
                return body
        return await _in_thread(lambda: files.read_file(path), path)

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Return bytes as `get` does, and what `head` tells; of one file, though it be replaced."""
        if not start and await self._is_prompt(path):
            with _mapped_errors(path):
                found = files.fetch_small_file(path, length)
            if found is not None:
                return found
        return await _in_thread(lambda: files.fetch_range(path, start, length), path)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return whole files in the order asked for, in one hop to a worker thread."""
        # More threads do not help: they spend their time waiting for the interpreter's lock.
        return await _run(partial(files.read_files, tuple(paths))) if paths else []

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        if await self._is_prompt(path):
            with _mapped_errors(path):
                return files.head(path)
        return await _in_thread(lambda: files.head(path), path)

    async def folder_mark(self, folder: str) -> FolderMark | None:
        """Return the folder's identity and time, where the file system keeps that truthfully."""
        try:
            return files.folder_mark(folder) if await self._is_prompt(f"{folder}/") else None
        except OSError:
            # Whoever lists it learns why.
            return None

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file atomically and durably; `if_absent` lets exactly one racing writer win."""
        await _in_thread(lambda: files.write_file(path, data, if_absent), path, is_written=True)

    async def put_volatile(self, path: str, data: bytes) -> None:
        """Write a new file atomically, but leave it to the system when it reaches the disk."""
        await _in_thread(lambda: files.write_volatile_file(path, data), path, is_written=True)

    async def delete(self, path: str) -> None:
        """Delete a file; one that does not exist is deleted already."""
        await _in_thread(lambda: files.delete(path), path, is_written=True)

    def open_input(self, path: str) -> BinaryIO:
        """Open a file for random reading, blocking.

        It is read with `pread`, not mapped: a file that is cut short under a mapping kills the
        process, and mapped pages would count as memory of ours.
        """
        try:
            # As bytes: Arrow would have every path in UTF-8, whatever the system's names are in.
            return cast(BinaryIO, pa.OSFile(os.fsencode(path), mode="r"))
        except OSError as error:
            if os.path.isdir(path):  # noqa: PTH112 - Path raises what this may not
                raise FileMissingError(f"{path} is a folder, a file was expected.") from error
            raise files.map_os_error(error, path) from error

    def open_output(self, path: str) -> Output:
        """Begin a file that is written piece by piece, blocking."""
        with _mapped_errors(path, is_written=True):
            return LocalOutput(path)

    async def sweep(self, folder: str, before_ms: int) -> int:
        """Delete what dead writers left in `folder` before a time; return how many files."""
        return await _in_thread(lambda: files.sweep(folder, before_ms), folder, is_written=True)

    async def _is_prompt(self, path: str) -> bool:
        """Tell whether the file's folder answers at once; asked of the system once a folder."""
        folder = path.rpartition("/")[0]
        known = self._answers_at_once.get(folder)
        if known is None:
            known = await _run(partial(answers_at_once, folder))
            if known is None:
                # The folder may still come.
                return False
            if len(self._answers_at_once) >= _MAX_FOLDERS:
                self._answers_at_once.clear()
            self._answers_at_once[folder] = known
        return known


class LocalOutput(Output):
    """A temporary file in the folder of its target, which one call gives its name."""

    def __init__(self, path: str) -> None:
        """Begin the file."""
        self._path = path
        # A writer may still be at work when it is given up: its descriptor must not be closed under
        # it, for the number may be another file's at once, which would get the bytes.
        self._using = threading.Lock()
        self._temporary, self._descriptor = files.begin_file(path)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write the next piece."""
        size = memoryview(data).nbytes
        with self._using, _mapped_errors(self._path, is_written=True):
            if self._descriptor >= 0:
                files.write_all(self._descriptor, data)
                self.size_bytes += size
        return size

    async def finish(self, *, if_absent: bool = False) -> None:
        """Let the file appear."""
        await _in_thread(lambda: self._appear(if_absent), self._path, is_written=True)

    def _appear(self, if_absent: bool) -> None:
        try:
            with self._using:
                os.fsync(self._descriptor)
                files.let_appear(self._temporary, self._path, if_absent)
        finally:
            self._drop()

    async def discard(self) -> None:
        """Delete the temporary file."""
        await _in_thread(self._drop, self._path, is_written=True)

    def _drop(self) -> None:
        with self._using:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
                self._temporary.unlink(missing_ok=True)


async def _run(work: Callable[[], T]) -> T:
    # Not `asyncio.to_thread`: it copies the context, which costs as much as the small reads here.
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def _in_thread(work: Callable[[], T], path: str, *, is_written: bool = False) -> T:
    def mapped() -> T:
        with _mapped_errors(path, is_written=is_written):
            return work()

    return await _run(mapped)


@contextlib.contextmanager
def _mapped_errors(path: str, *, is_written: bool = False) -> Iterator[None]:
    """Turn what the operating system raises into errors of the storage."""
    try:
        yield
    except OSError as error:
        raise files.map_os_error(error, path, is_written=is_written) from error


def _first_files(folder: str, start_after: str) -> tuple[list[FileMeta], list[str]]:
    """Return the first files after `start_after`, and the names that are still to be looked at."""
    names = files.scan_names(folder, start_after)
    return files.stat_all(folder, names[:_STAT_CHUNK]), names[_STAT_CHUNK:]
