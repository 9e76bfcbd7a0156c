"""Random access to a file of a bucket, blocking, with few requests."""

from __future__ import annotations

import abc
import asyncio
import io
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar, cast

import pyarrow as pa

from tailerd.errors import FileMissingError, StorageError
from tailerd.storage.base import FileMeta, PendingInput, RemoteFile
from tailerd.storage.io_thread import io_thread

T = TypeVar("T")

TAIL_BYTES = 2 * 1024 * 1024
"""Read on opening: all of a small file, or the footer. Transferring it takes about as long as one
more request would."""
AHEAD_BYTES = 256 * 1024
"""Minimum size of a read."""
PART_BYTES = 8 * 1024 * 1024
"""Larger reads are split into parts of about this size, which are fetched concurrently."""
PARTS_AT_ONCE = 4
_POOLED_BYTES = 64 * 1024


def allocate_memory(length: int) -> memoryview:
    """Return memory for a body; large buffers are pooled, because fresh pages are slow."""
    if length < _POOLED_BYTES:
        return memoryview(bytearray(length))
    return memoryview(pa.allocate_buffer(length)).cast("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The response to a GET: the file's metadata, the requested bytes and the file's etag."""

    meta: FileMeta
    body: bytes | memoryview
    etag: str = ""


class Fetch(Protocol):
    """Gets a file or a range of it, with retries, on the I/O thread."""

    async def __call__(
        self,
        path: str,
        start: int = 0,
        length: int | None = None,
        etag: str = "",
        into: memoryview | None = None,
    ) -> Fetched:
        """Return the response.

        Args:
            start: If negative, counted from the end; then `length` must be None.
            etag: If set, the file must have this ETag.
            into: Memory for the body, if usable; then it is the result's body.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A range of the file that is in memory or being fetched."""

    start: int
    length: int
    body: Future[memoryview]

    def has(self, start: int, length: int) -> bool:
        return self.start <= start and start + length <= self.start + self.length

    def view(self, start: int, length: int) -> memoryview:
        at = start - self.start
        return self.body.result()[at : at + length]


class RemoteInput(RemoteFile):
    """An open file; used by one thread at a time.

    Raises:
        FileMissingError: The file does not exist.
        StorageError: It cannot be read, or was replaced since it was opened.
    """

    def __init__(self, fetch: Fetch, path: str, opening: Future[Fetched] | None = None) -> None:
        """Open a file and read its end, unless `opening` already does."""
        self._get = fetch
        self._path = path
        found = (opening or _begin_opening(fetch, path)).result()
        self._etag = found.etag
        self._size = found.meta.size_bytes
        self._position = 0
        tail = memoryview(found.body)
        self._tail = _loaded_block(self._size - len(tail), tail)
        self._last = _loaded_block(0, memoryview(b""))
        self._expected: list[_Block] = []

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def size(self) -> int:
        """Return the file's length; called by pyarrow."""
        return self._size

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end; without a size, all remaining bytes."""
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int = -1) -> memoryview:
        """Return what `read` returns, without a copy; pyarrow prefers this method."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        start = self._position
        left = max(0, self._size - start)
        requested = left if size < 0 else min(size, left)
        if not requested:
            return memoryview(b"")
        blocks = (self._tail, self._last, *self._expected)
        block = next((each for each in blocks if each.has(start, requested)), None)
        found = self._fetch(start, requested) if block is None else block.view(start, requested)
        self._position += requested
        return found

    def readall(self) -> bytes:
        """Return all remaining bytes."""
        return self.read(-1)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer; return the number of bytes read."""
        found = self.read_buffer(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Start to fetch ranges (start, length) that will be read soon; cancel all others."""
        within = [(start, min(length, self._size - start)) for start, length in ranges]
        known = {(block.start, block.length): block for block in self._expected}
        self._cancel([block for key, block in known.items() if key not in within])
        self._expected = [known.get(each) or self._begin(*each) for each in within]

    def close(self) -> None:
        """Close the file."""
        self._cancel(self._expected)
        self._expected = []
        self._tail = self._last = _loaded_block(0, memoryview(b""))
        super().close()

    def _cancel(self, blocks: Sequence[_Block]) -> None:
        for block in blocks:
            block.body.cancel()

    def _begin(self, start: int, length: int) -> _Block:
        if self._tail.has(start, length):
            return self._tail
        body = io_thread().submit(self._ranges(start, length))
        return _Block(start=start, length=length, body=body)

    def _fetch(self, start: int, requested: int) -> memoryview:
        length = min(max(requested, AHEAD_BYTES), self._size - start)
        body = io_thread().call(self._ranges(start, length))
        if requested <= AHEAD_BYTES:
            # Larger reads are column chunks, which are read once and need no caching.
            self._last = _loaded_block(start, body)
        return body[:requested]

    async def _ranges(self, start: int, length: int) -> memoryview:
        """Fetch a range into one buffer; bytes in the file's cached end are not requested."""
        whole = allocate_memory(length)
        end = start + length
        if start < self._tail.start < end:
            rest = self._tail.body.result()[: end - self._tail.start]
            whole[length - len(rest) :] = rest
            end = self._tail.start
        parts = min(PARTS_AT_ONCE, max(1, (end - start) // PART_BYTES))
        step = -(-(end - start) // parts)
        tasks = [
            asyncio.create_task(self._part(at, whole[at - start : min(at + step, end) - start]))
            for at in range(start, end, step)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return whole

    async def _part(self, start: int, into: memoryview) -> None:
        found = await self._get(self._path, start, len(into), etag=self._etag, into=into)
        if len(found.body) < len(into):
            raise StorageError(f"{self._path} became shorter while it was read.")
        if found.body is not into:
            into[:] = found.body


class PendingRemoteInput:
    """A file whose end is being fetched."""

    def __init__(self, fetch: Fetch, path: str) -> None:
        """Start to fetch the file's end."""
        self._get = fetch
        self._path = path
        self._opening = _begin_opening(fetch, path)

    def open(self) -> BinaryIO:
        """Wait until the end is fetched; return the open file."""
        return cast(BinaryIO, RemoteInput(self._get, self._path, self._opening))

    def cancel(self) -> None:
        """Cancel the opening."""
        self._opening.cancel()


def refuse_name(url: str) -> FileMissingError:
    """Return the error for a name with surrogates.

    A log can contain such names: on a local disk, file names are arbitrary bytes.
    """
    shown = url.encode("utf-8", "backslashreplace").decode()
    return FileMissingError(f"{shown} does not exist: names in buckets are UTF-8.")


def _begin_opening(fetch: Fetch, path: str) -> Future[Fetched]:
    return io_thread().submit(fetch(path, -TAIL_BYTES))


def _loaded_block(start: int, body: memoryview) -> _Block:
    done: Future[memoryview] = Future()
    done.set_result(body)
    return _Block(start=start, length=len(body), body=done)


class RemoteReads(abc.ABC):
    """The reading half of a store of buckets, made of its GET (`fetch_here`) and HEAD."""

    @abc.abstractmethod
    async def fetch_here(
        self,
        path: str,
        start: int = 0,
        length: int | None = None,
        etag: str = "",
        into: memoryview | None = None,
    ) -> Fetched:
        """Do what `fetch` does, on the I/O thread; as `Fetch`."""

    @abc.abstractmethod
    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""

    @abc.abstractmethod
    def require_key(self, path: str) -> None:
        """Refuse the path of a bucket itself.

        Raises:
            FileMissingError: It has no key.
        """

    async def run_here(self, work: Coroutine[object, object, T]) -> T:
        """Run work where the store's requests may be awaited: on the I/O thread."""
        return await io_thread().run(work)

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes, or `length` of them from `start`; fewer at the end."""
        return (await self.fetch(path, start, length))[1]

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Return what `head` and `get` return, in one request."""
        if length == 0:
            return await self.head(path), b""
        found = await self.run_here(self.fetch_here(path, start, length))
        return found.meta, bytes(found.body)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return whole files in the requested order, fetched concurrently."""
        return await self.run_here(self._get_many(paths)) if paths else []

    async def _get_many(self, paths: Sequence[str]) -> list[bytes]:
        tasks = [asyncio.create_task(self.fetch_here(path)) for path in paths]
        try:
            return [bytes(found.body) for found in await asyncio.gather(*tasks)]
        finally:
            for task in tasks:
                task.cancel()

    def open_input(self, path: str) -> BinaryIO:
        """Open a file for random reading, blocking: one request, which reads a small file whole."""
        self.require_key(path)
        return cast(BinaryIO, RemoteInput(self.fetch_here, path))

    def begin_input(self, path: str) -> PendingInput:
        """Start what `open_input` does: its request is sent at once."""
        self.require_key(path)
        return PendingRemoteInput(self.fetch_here, path)
