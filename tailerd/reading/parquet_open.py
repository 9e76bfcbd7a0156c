"""Opens Parquet files, including those with group types that Arrow rejects."""

from __future__ import annotations

import io
import struct
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.errors import CorruptLogError
from tailerd.reading.parquet_footer import MAGIC, TAIL_BYTES, without_group_marks

MAX_PATCHED_BYTES = 16 * 1024 * 1024
"""Longer footers are not repaired: they are read twice, here and by Arrow."""


def open_parquet(source: BinaryIO, **options: Any) -> pq.ParquetFile:
    """Open a file as `pq.ParquetFile` does; repair value types on groups in memory.

    The footer is examined only if Arrow rejects the file, and nothing else is read for that.

    Raises:
        pyarrow.ArrowException, OSError: It cannot be opened.
    """
    try:
        return pq.ParquetFile(source, **options)
    except (pa.ArrowException, OSError):
        repaired = _repaired(source)
        if repaired is None:
            raise
    return pq.ParquetFile(repaired, **options)


def _repaired(source: BinaryIO) -> BinaryIO | None:
    end = source.seek(0, io.SEEK_END)
    source.seek(max(0, end - TAIL_BYTES))
    tail = source.read(TAIL_BYTES)
    if len(tail) < TAIL_BYTES or tail[4:] != MAGIC:
        return None
    [size] = struct.unpack("<I", tail[:4])
    start = end - TAIL_BYTES - size
    if start < 0 or size > MAX_PATCHED_BYTES:
        return None
    source.seek(start)
    try:
        body = without_group_marks(source.read(size))
    except CorruptLogError:
        return None
    if body is None:
        return None
    rest = body + struct.pack("<I", len(body)) + MAGIC
    return cast(BinaryIO, io.BufferedReader(_PatchedFile(source, start, rest)))


class _PatchedFile(io.RawIOBase):
    """A file whose bytes from a position on are replaced. It does not own the file."""

    def __init__(self, source: BinaryIO, until: int, rest: bytes) -> None:
        self._source = source
        self._until = until
        self._rest = rest
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._until + len(self._rest)}
        self._at = base[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at < self._until:
            self._source.seek(self._at)
            piece = self._source.read(min(len(view), self._until - self._at))
        else:
            place = self._at - self._until
            piece = self._rest[place : place + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
