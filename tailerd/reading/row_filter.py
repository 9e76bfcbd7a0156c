"""Which rows of a file count, from its deletion vectors.

Protocol: PROTOCOL.md#deletion-vectors
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tailerd.changefeed.change_task import DeletionVector, RowFilter
from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES, largest_piece_bytes
from tailerd.errors import (
    FileMissingError,
    InvalidDeletionVectorError,
    MissingDataFileError,
    TooLargeError,
)
from tailerd.formats.delta.protocol.deletion_vector import (
    FRAME_BYTES,
    check_place,
    decode_framed,
    decode_inline,
)

Rows = TypeVar("Rows", pa.RecordBatch, pa.Array)


OpenFile = Callable[[str], BinaryIO]
"""Opens a file by its URL."""


class RowSelection:
    """Tells of any stretch of a file's rows which count.

    A bitmap of a few bytes may have billions of rows: it is asked for stretches, never for all.

    Args:
        positions: Row positions.
        is_kept: Whether they are the rows that count, or those that do not.
    """

    def __init__(self, positions: BitMap64, *, is_kept: bool) -> None:
        self._positions = positions
        self._is_kept = is_kept

    def is_empty(self, start: int, end: int) -> bool:
        """Tell whether no row of [start, end) counts, so that it need not be read."""
        found = self._positions.range_cardinality(start, end)
        return bool(found == 0 if self._is_kept else found == end - start)

    def apply(self, rows: Rows, start: int) -> Rows:
        """Return those of `rows` that count; the first of them is row `start` of the file."""
        if not self._is_kept and not self._positions.range_cardinality(start, start + len(rows)):
            return rows
        here = self._positions & BitMap64(range(start, start + len(rows)))
        places = (np.asarray(here.to_array(), np.uint64) - np.uint64(start)).astype(np.int64)
        if self._is_kept:
            return rows.take(pa.array(places))
        mask = np.ones(len(rows), np.bool_)
        mask[places] = False
        return rows.filter(pa.array(mask))


def select_rows(
    rows: RowFilter,
    num_rows: int,
    open_file: OpenFile,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> RowSelection | None:
    """Load the deletion vectors of a filter; None when every row counts.

    Args:
        num_rows: Rows of the file.
        open_file: Opens a file of vectors.
        memory_bytes: What reading may take.

    Raises:
        TooLargeError: A vector does not fit the memory.
        InvalidDeletionVectorError: A vector is damaged, or names rows the file does not have.
        MissingDataFileError: A vector's file is gone.
    """
    if rows.include is None and rows.exclude is None:
        return None
    excluded = _load(rows.exclude, num_rows, open_file, memory_bytes)
    if rows.include is None:
        return RowSelection(excluded, is_kept=False)
    return RowSelection(
        _load(rows.include, num_rows, open_file, memory_bytes) - excluded, is_kept=True
    )


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
            hint="It belongs to another file: restore the log entry from a backup.",
        )
    return bitmap


def _read_frame(source: BinaryIO, vector: DeletionVector, memory_bytes: int) -> bytes:
    """Read a vector with its frame; what the file does not have is not asked for."""
    # Without an offset the vector is the first one, behind the file's version byte.
    start = 1 if vector.offset is None else vector.offset
    check_place(vector, source.seek(0, 2))
    if vector.size_bytes > largest_piece_bytes(memory_bytes):
        raise TooLargeError.within(
            memory_bytes, f"The deletion vector {vector.url} has {vector.size_bytes >> 20} MiB"
        )
    source.seek(start)
    return source.read(vector.size_bytes + FRAME_BYTES)


def missing_data_file(url: str) -> MissingDataFileError:
    """Return the error for a file that the log names and nobody finds."""
    return MissingDataFileError(
        f"The file {url} is named by the log and does not exist, most likely because VACUUM"
        " removed it: files of past versions are kept for delta.deletedFileRetentionDuration"
        " (a week by default).",
        hint=(
            "Start later or from a snapshot (--from snapshot), and raise the retention above the"
            " longest time a reader may be away."
        ),
    )
