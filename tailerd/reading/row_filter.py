"""Which rows of a file count, from its deletion vectors.

Protocol: PROTOCOL.md#deletion-vectors
"""

from __future__ import annotations

from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from tailerd.changefeed.change_task import DeletionVector, RowFilter
from tailerd.delta.protocol.deletion_vector import FRAME_BYTES, decode_framed, decode_inline
from tailerd.errors import FileMissingError, InvalidDeletionVectorError, MissingDataFileError
from tailerd.storage.locate import open_data_file

Positions = npt.NDArray[np.uint64]
Rows = TypeVar("Rows", pa.RecordBatch, pa.Array)


class RowSelection:
    """Tells of any stretch of a file's rows which count.

    Args:
        positions: Sorted row positions.
        is_kept: Whether they are the rows that count, or those that do not.
    """

    def __init__(self, positions: Positions, *, is_kept: bool) -> None:
        self._positions = positions
        self._is_kept = is_kept

    def _between(self, start: int, end: int) -> Positions:
        first, until = np.searchsorted(self._positions, np.array([start, end], np.uint64))
        return self._positions[first:until]

    def is_empty(self, start: int, end: int) -> bool:
        """Tell whether no row of [start, end) counts, so that it need not be read."""
        found = len(self._between(start, end))
        return found == 0 if self._is_kept else found == end - start

    def apply(self, rows: Rows, start: int) -> Rows:
        """Return those of `rows` that count; the first of them is row `start` of the file."""
        places = self._between(start, start + len(rows)) - np.uint64(start)
        if self._is_kept:
            return rows.take(pa.array(places.astype(np.int64)))
        if not len(places):
            return rows
        mask = np.ones(len(rows), np.bool_)
        mask[places.astype(np.int64)] = False
        return rows.filter(pa.array(mask))


def select_rows(rows: RowFilter, num_rows: int) -> RowSelection | None:
    """Load the deletion vectors of a filter; None when every row counts.

    Args:
        num_rows: Rows of the file.

    Raises:
        InvalidDeletionVectorError: A vector is damaged, or names rows the file does not have.
        MissingDataFileError: A vector's file is gone.
    """
    if rows.include is None and rows.exclude is None:
        return None
    excluded = _load(rows.exclude, num_rows)
    if rows.include is None:
        return RowSelection(np.asarray(excluded.to_array(), np.uint64), is_kept=False)
    included = _load(rows.include, num_rows)
    return RowSelection(np.asarray((included - excluded).to_array(), np.uint64), is_kept=True)


def _load(vector: DeletionVector | None, num_rows: int) -> BitMap64:
    if vector is None:
        return BitMap64()
    if vector.storage_type == "i":
        bitmap = decode_inline(vector)
    else:
        try:
            with open_data_file(vector.url) as source:
                bitmap = decode_framed(vector, _read_frame(source, vector))
        except FileMissingError as error:
            raise missing_data_file(vector.url) from error
    if len(bitmap) and bitmap.max() >= num_rows:
        raise InvalidDeletionVectorError(
            f"The deletion vector {vector.url or 'inline'} deletes row {bitmap.max()} of a file"
            f" with {num_rows} rows.",
            hint="It belongs to another file: restore the log entry from a backup.",
        )
    return bitmap


def _read_frame(source: BinaryIO, vector: DeletionVector) -> bytes:
    # Without an offset the vector is the first one, behind the file's version byte.
    source.seek(1 if vector.offset is None else vector.offset)
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
