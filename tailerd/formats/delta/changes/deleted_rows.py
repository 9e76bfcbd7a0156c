"""Selects rows of a file by its deletion vectors.

Protocol: PROTOCOL.md#deletion-vectors
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from pyroaring import BitMap64

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES, largest_piece_bytes
from tailerd.errors import (
    FileMissingError,
    InvalidDeletionVectorError,
    MissingDataFileError,
    TooLargeError,
)
from tailerd.formats.delta.protocol.data_file import DeletionVector, RowFilter
from tailerd.formats.delta.protocol.deletion_vector import (
    FRAME_BYTES,
    check_bounds,
    decode_framed,
    decode_inline,
)
from tailerd.reading.row_selection import RowSelection
from tailerd.remedies import RESTART

OpenFile = Callable[[str], BinaryIO]
"""Opens a file by its URL."""


def select_rows(
    rows: RowFilter,
    open_file: OpenFile,
    num_rows: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> RowSelection | None:
    """Load the deletion vectors of a filter; None if every row is selected.

    Args:
        open_file: Opens a file of vectors.
        num_rows: Rows of the file.
        memory_bytes: Memory for reading.

    Raises:
        TooLargeError: A vector does not fit the memory.
        InvalidDeletionVectorError: A vector is damaged, or has rows beyond the end of the file.
        MissingDataFileError: A vector's file is missing.
    """
    if rows.include is None and rows.exclude is None:
        return None
    excluded = _load(rows.exclude, num_rows, open_file, memory_bytes)
    if rows.include is None:
        return RowSelection(excluded, is_included=False)
    return RowSelection(
        _load(rows.include, num_rows, open_file, memory_bytes) - excluded, is_included=True
    )


def selects_nothing(rows: RowFilter, open_file: OpenFile, memory_bytes: int) -> bool:
    """Return whether a filter has a vector of included rows and excludes all of them.

    This is the case for a vector that only grew: no row is restored.

    Raises:
        TailerdError: As `select_rows`.
    """
    if rows.include is None:
        return False
    any_row = 1 << 62
    included = _load(rows.include, any_row, open_file, memory_bytes)
    return not included - _load(rows.exclude, any_row, open_file, memory_bytes)


def _load(
    vector: DeletionVector | None, num_rows: int, open_file: OpenFile, memory_bytes: int
) -> BitMap64:
    if vector is None:
        return BitMap64()
    if vector.storage_type == "i":
        bitmap = decode_inline(vector)
    else:
        try:
            with open_file(vector.url) as source:
                bitmap = decode_framed(vector, _read_frame(source, vector, memory_bytes))
        except FileMissingError as error:
            raise missing_data_file(vector.url) from error
    if len(bitmap) and bitmap.max() >= num_rows:
        raise InvalidDeletionVectorError(
            f"The deletion vector {vector.url or 'inline'} deletes row {bitmap.max()} of a file"
            f" with {num_rows} rows.",
            remedy="It belongs to another file: restore the log entry from a backup.",
        )
    return bitmap


def _read_frame(source: BinaryIO, vector: DeletionVector, memory_bytes: int) -> bytes:
    """Read a vector with its frame, without reading beyond the end of the file."""
    # Without an offset the vector is the first one, after the file's version byte.
    start = 1 if vector.offset is None else vector.offset
    check_bounds(vector, source.seek(0, 2))
    if vector.size_bytes > largest_piece_bytes(memory_bytes):
        raise TooLargeError.within(
            memory_bytes, f"The deletion vector {vector.url} has {vector.size_bytes >> 20} MiB"
        )
    source.seek(start)
    return source.read(vector.size_bytes + FRAME_BYTES)


def missing_data_file(url: str) -> MissingDataFileError:
    """Return the error for a file that the log references and that does not exist."""
    return MissingDataFileError(
        f"The file {url} is named by the log and does not exist, most likely because VACUUM"
        " removed it: files of past versions are kept for delta.deletedFileRetentionDuration"
        " (a week by default).",
        remedy=f"{RESTART}, and raise the retention above the longest time a reader may be away.",
        path=url,
    )
