"""Finds the rows of two files that may differ, if most of their columns have the same bytes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tailerd.reading.equal_chunks import FileDifference, GroupDifference
from tailerd.reading.row_selection import RowSelection
from tailerd.rows.difference import Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.exact import PositionedRows
from tailerd.rows.hash_kernels import Rows
from tailerd.rows.hashing import VariantEquality
from tailerd.rows.positions import Positions

MOST_ROWS = 1 << 20
"""Of a file: if more may differ, all are compared. Fixed, so that the same rows cancel in every
run, whatever the memory."""
_SEED_BITS = 128

ReadColumns = Callable[[Side, RowSelection, tuple[str, ...]], Iterable[PositionedRows]]
"""Reads the given columns of the selected rows of a side's file, in order."""


def unequal_rows(
    found: FileDifference, schema: pa.Schema, read: ReadColumns
) -> tuple[Positions, Positions] | None:
    """Return the positions of those rows of each file that may differ; the others are equal.

    Args:
        found: The difference of the files' bytes.
        schema: Of all columns.

    Returns:
        None if they are most of a file's rows, or too many.
    """
    unknown = [np.arange(g.start, g.start + g.count) for g in found.groups if g.columns is None]
    counts = [sum(map(len, unknown)) + rows - found.known_rows for rows in found.rows]
    most = min(MOST_ROWS, min(found.rows) // 2)
    if max(counts) > most:
        return None
    partly = [group for group in found.groups if group.columns is not None]
    for places in _compared(partly, schema, read) if partly else ():
        unknown.append(places)
        if sum(map(len, unknown)) > most:
            return None
    common = np.sort(np.concatenate([np.empty(0, np.int64), *unknown]))
    removed, added = (
        Positions.of(np.concatenate([common, np.arange(found.known_rows, rows)]))
        for rows in found.rows
    )
    return removed, added


def _compared(
    groups: Sequence[GroupDifference], schema: pa.Schema, read: ReadColumns
) -> Iterator[Rows]:
    """Yield the positions of the rows that differ in the columns that may differ."""
    wanted = {place for group in groups for place in group.columns or ()}
    names = tuple(name for place, name in enumerate(schema.names) if place in wanted)
    # By bytes: rows that differ are compared again later, variants by value.
    comparer = RowComparer(
        pa.schema([schema.field(place) for place in sorted(wanted)]),
        secrets.randbits(_SEED_BITS),
        VariantEquality.BY_BYTES,
    )
    rows = BitMap64()
    for group in groups:
        rows.add_range(group.start, group.start + group.count)
    selection = RowSelection(rows, is_kept=True)
    for positions, one, other in _in_step(*(read(side, selection, names) for side in Side)):
        places = np.flatnonzero(~comparer.equal(one, other))
        yield places + positions if isinstance(positions, int) else positions[places]


def _in_step(
    one: Iterable[PositionedRows], other: Iterable[PositionedRows]
) -> Iterator[tuple[Rows | int, pa.RecordBatch, pa.RecordBatch]]:
    """Yield rows at the same positions of two files, however each is cut into batches."""
    others = iter(other)
    waiting: pa.RecordBatch | None = None
    for first, batch in one:
        positions, left = first, batch
        while left.num_rows:
            if waiting is None or not waiting.num_rows:
                _, waiting = next(others)
            count = min(left.num_rows, waiting.num_rows)
            yield positions, left.slice(0, count), waiting.slice(0, count)
            left, waiting = left.slice(count), waiting.slice(count)
            positions = positions + count if isinstance(positions, int) else positions[count:]
