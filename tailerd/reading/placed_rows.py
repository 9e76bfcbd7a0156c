"""Adds a column with file and position to rows of a compared commit, so that sorting keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import rows_of_columns
from tailerd.rows.difference import Side
from tailerd.rows.hash_kernels import Rows

_PLACE = pa.field("place", pa.int64(), nullable=False)
"""The last column, whatever the names of the others."""
_ROW_BITS = 40


def add_positions(
    rows: pa.RecordBatch, side: Side, number: int, positions: Rows | int
) -> pa.RecordBatch:
    """Return rows with an additional column of their places.

    Args:
        number: Of their file on its side.
        positions: Of the rows in it, or that of the first if they are consecutive.
    """
    if isinstance(positions, int):
        positions = np.arange(positions, positions + rows.num_rows)
    places = positions | (2 * number + side) << _ROW_BITS
    return pa.RecordBatch.from_arrays(
        [*rows.columns, pa.array(places, pa.int64())], schema=rows.schema.append(_PLACE)
    )


def split_positions(
    rows: pa.RecordBatch, numbers: Mapping[Side, Sequence[int]]
) -> tuple[pa.RecordBatch, Rows, Rows]:
    """Return rows without that column, the numbers of their files, and their positions in them.

    Args:
        numbers: For each side the numbers of its files, as in `RowPlaces`.
    """
    *columns, last = rows.columns
    places = last.to_numpy()
    of_side, sides = np.divmod(places >> _ROW_BITS, 2)
    files = np.empty(len(places), np.int64)
    for side, known in numbers.items():
        is_there = sides == side
        files[is_there] = np.array(known, np.int64)[of_side[is_there]]
    schema = rows.schema.remove(rows.num_columns - 1)
    without = rows_of_columns(columns, schema, rows.num_rows)
    return without, files, places & ((1 << _ROW_BITS) - 1)
