"""Files of this machine: absolute POSIX paths.

Calls block, so they run in worker threads, with one exception: a round trip to a thread costs
twenty times as much as a stat of a small file on a local disk. Where the file system is known to
answer at once (`mounts`), `head` and small `get`s therefore run in place, except through links,
which may lead to another file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import BinaryIO, ClassVar, Self, TypeVar, cast
from urllib.parse import unquote

from tailerd.errors import ConfigError
from tailerd.storage import posix_files as files
from tailerd.storage.base import FileMeta, FolderMark, NeedsNoSettings, NoSettings, ObjectStore
from tailerd.storage.finished_files import FinishedFiles
from tailerd.storage.folder_identity import is_fast_local
from tailerd.storage.links import AllowedPaths, open_parent
from tailerd.storage.output import Output

T = TypeVar("T")

_STAT_CHUNK = 1024
_MAX_FOLDERS = 4096


class LocalStore:
    """The local file system as an object store.

    Paths are absolute and literal: nothing is decoded. Symbolic links are followed.

    Args:
        locations: Those of one table: below its root, reads follow links only to these locations,
            and writes and deletions follow none.
        is_private: Whether files that `put` writes, and their folders, are for this user alone.

    Attributes:
        finished: Files whose writers have closed them, as watchers of their folders report; shared
            with the stores that `within` returns.
    """

    scheme: str = "file"
    is_remote: bool = False
    is_local_folder: bool = True

    def __init__(self, locations: AllowedPaths | None = None, *, is_private: bool = False) -> None:
        """Start with an empty cache of folders."""
        self._is_private = is_private
        self.finished = FinishedFiles()
        self.locations = locations
        self._root = None if locations is None else locations.root
        self._is_fast_local: dict[str, bool] = {}

    def within(self, locations: AllowedPaths) -> Self:
        """Return a store of this kind for one table."""
        store = copy(self)
        store.locations, store._root = locations, locations.root
        return store

    def format_url(self, path: str) -> str:
        """Return the path itself."""
        return path

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List as `ObjectStore.list_from`; never blocks the event loop, however many files."""
        metas, names = await _in_thread(lambda: _first_files(folder, start_after), folder)
        for meta in metas:
            yield meta
        for first in range(0, len(names), _STAT_CHUNK):
            stat = partial(files.stat_all, folder, names[first : first + _STAT_CHUNK])
            for meta in await _in_thread(stat, folder):
                yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes, or `length` of them from `start`; fewer at the end."""
        if start or length is not None:
            return await self._read(lambda: files.read_range(path, start, length), path)
        if await self._is_prompt(path):
            self._check(path)
            body = _in_place(lambda: files.read_small_file(path), path)
            if body is not None:
                return body
        return await self._read(lambda: files.read_file(path), path)

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Return what `head` and `get` return, of one file even if it is replaced meanwhile."""
        if not start and await self._is_prompt(path):
            self._check(path)
            found = _in_place(lambda: files.fetch_small_file(path, length), path)
            if found is not None:
                return found
        return await self._read(lambda: files.fetch_range(path, start, length), path)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return whole files in the requested order, in one call to a worker thread."""
        # More threads do not help: they spend their time waiting for the GIL.
        return await _run(partial(self._read_files, tuple(paths))) if paths else []

    def _read_files(self, paths: Sequence[str]) -> list[bytes]:
        self._check(*paths)
        return files.read_files(paths)

    async def _read(self, work: Callable[[], T], path: str) -> T:
        def check_call() -> T:
            self._check(path)
            return work()

        return await _in_thread(check_call, path)

    def _check(self, *paths: str) -> None:
        if self.locations is not None:
            self.locations.check(paths)

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        if await self._is_prompt(path):
            found = _in_place(lambda: files.head(path, is_in_place=True), path)
            if found is not None:
                return found
        return await _in_thread(lambda: files.head(path), path)

    async def folder_mark(self, folder: str) -> FolderMark | None:
        """Return the folder's identity and mtime, where the file system maintains it reliably."""
        try:
            return files.folder_mark(folder) if await self._is_prompt(f"{folder}/") else None
        except OSError:
            # Listing the folder raises the error.
            return None

    async def stat_finished(self, path: str) -> tuple[FileMeta, bool | None]:
        """Return whether a file is complete; known only on local disks, not on network ones."""
        if await self._is_prompt(path):
            found = _in_place(lambda: files.stat_finished(path), path)
            if found is not None:
                meta, is_finished = found
                return meta, path in self.finished or None if is_finished is None else is_finished
        return await self.head(path), None

    async def wait_finished(self, path: str, seconds: float) -> bool:
        """Wait until a watcher reports that a file's writer closed it; False after `seconds`."""
        return await self.finished.wait(path, seconds)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file atomically and durably; with `if_absent` one concurrent writer succeeds."""
        await self._write(path, data, if_absent=if_absent)

    async def put_nondurable(self, path: str, data: bytes, *, if_absent: bool = True) -> None:
        """Write a file atomically, without fsync."""
        await self._write(path, data, if_absent=if_absent, is_durable=False)

    async def _write(self, path: str, data: bytes, **options: bool) -> None:
        options["is_private"] = self._is_private
        write = partial(files.write_file, path, data, self._root, **options)
        await _in_thread(write, path, is_written=True)

    async def delete(self, path: str) -> None:
        """Delete a file; succeeds if it does not exist."""
        await _in_thread(lambda: files.delete(path, self._root), path, is_written=True)

    def open_input(self, path: str) -> BinaryIO:
        """Open a file for random reading, blocking.

        It is read with `pread`, not mmap: truncating a mapped file kills the process, and mapped
        pages would count as this process's memory.
        """
        self._check(path)
        with _mapped_errors(path):
            return cast(BinaryIO, files.open_for_arrow(path))

    def open_output(self, path: str) -> Output:
        """Start a file that is written in chunks, blocking."""
        with _mapped_errors(path, is_written=True):
            return LocalOutput(path, self._root)

    async def sweep(self, folder: str, before_ms: int) -> int:
        """Delete what dead writers left in `folder` before a time; return the number of files."""
        work = partial(files.sweep, folder, before_ms, self._root)
        return await _in_thread(work, folder, is_written=True)

    async def _is_prompt(self, path: str) -> bool:
        """Return whether the file's folder answers at once; determined once per folder."""
        folder = path.rpartition("/")[0]
        known = self._is_fast_local.get(folder)
        if known is None:
            known = await _run(partial(is_fast_local, folder))
            if known is None:
                # The folder may be created later.
                return False
            if len(self._is_fast_local) >= _MAX_FOLDERS:
                self._is_fast_local.clear()
            self._is_fast_local[folder] = known
        return known


class LocalStoreProvider(NeedsNoSettings):
    """Serves paths and `file:` URLs; a `storage.base.StoreProvider`."""

    name: ClassVar[str] = "file"

    def __init__(self, settings: NoSettings) -> None:
        """Serve every local folder from one store."""
        self.store = LocalStore()

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store and the absolute path, with percent escapes decoded once.

        Raises:
            ConfigError: The URL names another machine.
        """
        if host not in ("", "localhost"):
            raise ConfigError(
                f"{url} names the host {host!r}, but a file: URL can only mean this machine.",
                remedy=f"Write file:///{host}{path} if {host!r} is a folder.",
            )
        return self.store, absolute(unquote(path))


def absolute(path: str) -> str:
    """Return a path made absolute and normal."""
    # `abspath` keeps two leading slashes, because POSIX allows them a meaning; here they have none.
    return "/" + os.path.abspath(path or "/").lstrip("/")  # noqa: PTH100 - Path would keep `..`


class LocalOutput(Output):
    """A temporary file in its target's folder that gets its final name atomically."""

    def __init__(self, path: str, root: str | None = None) -> None:
        """Start the file; below `root` no link is followed."""
        self._path = path
        # A writer may still be running when the file is discarded. Its descriptor must not be
        # closed meanwhile: the number could be reused, and another file would get the bytes.
        self._using = threading.Lock()
        self._folder = open_parent(path, root, is_made=True)
        try:
            self._temporary, self._descriptor = files.begin_file(self._folder, path)
        except BaseException:
            os.close(self._folder)
            raise

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write the next chunk."""
        size = memoryview(data).nbytes
        with self._using, _mapped_errors(self._path, is_written=True):
            if self._descriptor >= 0:
                files.write_all(self._descriptor, data)
                self.size_bytes += size
        return size

    async def finish(self, *, if_absent: bool = False) -> None:
        """Make the file visible."""
        await _in_thread(lambda: self._appear(if_absent), self._path, is_written=True)

    def _appear(self, if_absent: bool) -> None:
        try:
            with self._using:
                os.fsync(self._descriptor)
                files.publish(self._folder, self._temporary, self._path, if_absent)
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
                try:
                    files.drop(self._folder, self._temporary)
                finally:
                    os.close(self._folder)


async def _run(work: Callable[[], T]) -> T:
    # Not `asyncio.to_thread`: it copies the context, which costs as much as the small reads here.
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def _in_thread(work: Callable[[], T], path: str, *, is_written: bool = False) -> T:
    def map_error() -> T:
        with _mapped_errors(path, is_written=is_written):
            return work()

    return await _run(map_error)


def _in_place(work: Callable[[], T | None], path: str) -> T | None:
    """Run `work`, which returns at once, in this thread; None where it may not, as for a link."""
    with _mapped_errors(path), contextlib.suppress(files.LinkedFileError):
        return work()
    return None


@contextlib.contextmanager
def _mapped_errors(path: str, *, is_written: bool = False) -> Iterator[None]:
    """Map OS errors to storage errors."""
    try:
        yield
    except OSError as error:
        raise files.map_os_error(error, path, is_written=is_written) from error


def _first_files(folder: str, start_after: str) -> tuple[list[FileMeta], list[str]]:
    """Return the first files after `start_after`, and the names that still need a stat."""
    names = files.scan_names(folder, start_after)
    return files.stat_all(folder, names[:_STAT_CHUNK]), names[_STAT_CHUNK:]
