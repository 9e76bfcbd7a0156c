"""Rows of an exact commit that carry their file and position with them, however they are moved."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import rows_of_columns
from tailerd.formats.delta.protocol.rewritten_files import RewrittenFiles
from tailerd.rows.difference import Side
from tailerd.rows.hash_kernels import Rows

_PLACE = pa.field("place", pa.int64(), nullable=False)
"""The last column, whatever others are called."""
_ROW_BITS = 40


def placed(rows: pa.RecordBatch, side: Side, number: int, positions: Rows | int) -> pa.RecordBatch:
    """Return rows with one more column, in which their places are.

    Args:
        number: Of their file on its side.
        positions: Of the rows in it; or that of the first where they follow each other.
    """
    if isinstance(positions, int):
        positions = np.arange(positions, positions + rows.num_rows)
    places = positions | (2 * number + side) << _ROW_BITS
    return pa.RecordBatch.from_arrays(
        [*rows.columns, pa.array(places, pa.int64())], schema=rows.schema.append(_PLACE)
    )


def unplaced(rows: pa.RecordBatch, payload: RewrittenFiles) -> tuple[pa.RecordBatch, Rows, Rows]:
    """Return rows without that column, the positions of their files' tasks, and their own."""
    *columns, last = rows.columns
    places = last.to_numpy()
    numbers, sides = np.divmod(places >> _ROW_BITS, 2)
    files = np.empty(len(places), np.int64)
    for side, known in ((Side.REMOVED, payload.removed_tasks), (Side.ADDED, payload.added_tasks)):
        is_there = sides == side
        files[is_there] = np.array(known, np.int64)[numbers[is_there]]
    schema = rows.schema.remove(rows.num_columns - 1)
    without = rows_of_columns(columns, schema, rows.num_rows)
    return without, files, places & ((1 << _ROW_BITS) - 1)
