"""Opens Parquet files: reads the footer once, checks it, and repairs what Arrow rejects."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.limits import ALLOWANCE_BYTES
from tailerd.errors import CorruptLogError, TooLargeError, UnsupportedFeatureError
from tailerd.reading.parquet_chunks import FileFooter, parse_footer
from tailerd.reading.parquet_footer import MAGIC, TAIL_BYTES, without_group_marks
from tailerd.remedies import LEAVE_OUT

ENCRYPTED_MAGIC = b"PARE"

FOOTER_SHARE = 8
"""A footer decodes to objects of several times its size."""

MAX_PATCHED_BYTES = 16 * 1024 * 1024
"""Longer footers are not repaired, because they are decoded twice then."""


@dataclass(frozen=True, slots=True)
class OpenedParquet:
    """An open file: PyArrow's reader of its rows, and its footer.

    PyArrow's own description of column chunks is not used: see `parquet_chunks`.
    """

    file: pq.ParquetFile
    footer: FileFooter
    name: str
    size_bytes: int

    def check_readable(self, group: int, leaves: Iterable[int]) -> None:
        """Make sure that PyArrow can read leaf columns of a row group.

        Raises:
            UnsupportedFeatureError: One is encrypted.
            pyarrow.ArrowInvalid: One is not in the file.
        """
        for leaf in leaves:
            chunk = self.footer.groups[group].chunks[leaf]
            if chunk.is_encrypted:
                raise _refuse_encrypted(f"Column {self._path(leaf)} of {self.name} is", LEAVE_OUT)
            if chunk.is_elsewhere or chunk.first_byte + chunk.stored_bytes > self.size_bytes:
                raise pa.ArrowInvalid(
                    f"its footer says that {self._path(leaf)} is not, or not wholly, in the file"
                )

    def physical_types(self, leaves: Iterable[int]) -> list[str]:
        """Return the physical types of leaf columns."""
        return [self.file.schema.column(leaf).physical_type for leaf in leaves]

    def _path(self, leaf: int) -> str:
        return str(self.file.schema.column(leaf).path)


def open_parquet(source: BinaryIO, memory_bytes: int, name: str, **options: Any) -> OpenedParquet:
    """Open a file as `pq.ParquetFile` does; repair value types on groups in memory.

    Args:
        memory_bytes: The configured `memory`.
        name: For error messages.

    Raises:
        TooLargeError: Its footer does not fit the memory.
        UnsupportedFeatureError: Its footer is encrypted.
        pyarrow.ArrowException, OSError: It cannot be opened.
    """
    body, end = read_footer_bytes(source, memory_bytes, name)
    footer = parse_footer(body, memory_bytes, name)
    try:
        file = pq.ParquetFile(to_arrow(source), **options)
    except (pa.ArrowException, OSError):
        repaired = _repair_footer(body)
        if repaired is None:
            raise
        file = pq.ParquetFile(to_arrow(source), metadata=_arrow_metadata(repaired), **options)
    if any(len(group.chunks) != len(file.schema) for group in footer.groups):
        raise pa.ArrowInvalid("its footer has row groups without some of the columns")
    return OpenedParquet(file, footer, name, end)


def to_arrow(source: BinaryIO) -> BinaryIO | pa.NativeFile:
    """Return a file for Arrow, which reads bytes in memory without Python's lock."""
    return pa.BufferReader(source.getvalue()) if isinstance(source, io.BytesIO) else source


def read_footer_bytes(source: BinaryIO, memory_bytes: int, name: str) -> tuple[bytes, int]:
    """Return a footer without its length and magic, and the file's size.

    Raises:
        TailerdError, pyarrow.ArrowException: As `open_parquet`.
    """
    end = source.seek(0, io.SEEK_END)
    source.seek(max(0, end - TAIL_BYTES))
    tail = source.read(TAIL_BYTES)
    if tail[4:] == ENCRYPTED_MAGIC:
        raise _refuse_encrypted(
            f"The footer of {name} is", "start after the commits with such files"
        )
    if len(tail) < TAIL_BYTES or tail[4:] != MAGIC:
        raise pa.ArrowInvalid("it does not end with Parquet's magic bytes")
    [size] = struct.unpack("<I", tail[:4])
    start = end - TAIL_BYTES - size
    if start < len(MAGIC):
        raise pa.ArrowInvalid(f"its footer has {size} bytes, and the file {end}")
    if size > (memory_bytes + ALLOWANCE_BYTES) // FOOTER_SHARE:
        raise TooLargeError.within(memory_bytes, f"The footer of {name} has {size >> 20} MiB")
    source.seek(start)
    return source.read(size), end


def _refuse_encrypted(what: str, remedy: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{what} encrypted, and tailerd has no keys to decrypt it.",
        remedy=f"Either write the table without encryption, or {remedy}.",
    )


def _arrow_metadata(body: bytes) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(MAGIC + body + struct.pack("<I", len(body)) + MAGIC))


def _repair_footer(body: bytes) -> bytes | None:
    try:
        return without_group_marks(body) if len(body) <= MAX_PATCHED_BYTES else None
    except CorruptLogError:
        return None
