"""A file of a bucket for random reading, blocking, with few requests."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

from tailerd.errors import StorageError
from tailerd.storage.base import RemoteFile
from tailerd.storage.s3.io_thread import io_thread

if TYPE_CHECKING:
    from tailerd.storage.s3.store import S3Store

TAIL_BYTES = 512 * 1024
"""Read when the file is opened: all of a small file, or the footer. About what a server sends in
the time that another request would take."""
AHEAD_BYTES = 256 * 1024
"""Read at least."""
PART_BYTES = 4 * 1024 * 1024
"""Larger reads are split into parts of about this, which are fetched side by side."""
PARTS_AT_ONCE = 4


class RemoteInput(RemoteFile):
    """Used by one thread at a time.

    Raises:
        FileMissingError: There is none.
        StorageError: It cannot be read, or another took its place meanwhile.
    """

    def __init__(self, store: S3Store, path: str) -> None:
        """Open a file: its end is read at once."""
        self._store = store
        self._path = path
        found = io_thread().call(store.fetch_here(path, -TAIL_BYTES))
        self._etag = found.etag
        self._size = found.meta.size_bytes
        self._position = 0
        # (where it begins, bytes): the end, and what was read last.
        tail = found.body
        self._blocks = [(self._size - len(tail), tail), (0, b"")]

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def size(self) -> int:
        """Return the file's length; pyarrow asks."""
        return self._size

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end; without a size, all that are left."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        left = max(0, self._size - self._position)
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        found = self._known(wanted)
        if found is None:
            found = self._fetch(self._position, wanted)
        self._position += wanted
        return found

    def readall(self) -> bytes:
        """Return all that is left."""
        return self.read(-1)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer; return how many bytes came."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close the file."""
        self._blocks = []
        super().close()

    def _known(self, wanted: int) -> bytes | None:
        for start, block in self._blocks:
            at = self._position - start
            if at >= 0 and at + wanted <= len(block):
                return block if len(block) == wanted else block[at : at + wanted]
        return None

    def _fetch(self, start: int, wanted: int) -> bytes:
        length = min(max(wanted, AHEAD_BYTES), self._size - start)
        # The end is here already.
        tail_start, tail = self._blocks[0]
        rest = b""
        if start < tail_start < start + length:
            rest = tail[: start + length - tail_start]
            length = tail_start - start
        body = io_thread().call(self._ranges(start, length)) + rest
        if len(body) < wanted:
            raise StorageError(f"s3://{self._path} became shorter while it was read.")
        if len(body) == wanted and wanted > AHEAD_BYTES:
            # Columns are read once: kept, they would only take memory.
            return body
        self._blocks[1] = (start, body)
        return body[:wanted]

    async def _ranges(self, start: int, length: int) -> bytes:
        parts = min(PARTS_AT_ONCE, max(1, length // PART_BYTES))
        step = -(-length // parts)
        tasks = [
            asyncio.create_task(
                self._store.fetch_here(
                    self._path, at, min(step, start + length - at), etag=self._etag
                )
            )
            for at in range(start, start + length, step)
        ]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return found[0].body if len(found) == 1 else b"".join(each.body for each in found)
