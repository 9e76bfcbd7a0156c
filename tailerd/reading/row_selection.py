"""Selects rows of a file by their positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from tailerd.rows.positions import Positions

Rows = TypeVar("Rows", pa.RecordBatch, pa.Array)


class RowSelection:
    """The selected rows of a file, queried by range.

    A bitmap of a few bytes may have billions of rows: it is queried by range, never as a whole.

    Args:
        positions: Row positions.
        is_included: Whether these rows are selected, or all others.
    """

    def __init__(self, positions: BitMap64, *, is_included: bool) -> None:
        self._positions = positions
        self._is_included = is_included

    def is_empty(self, start: int, end: int) -> bool:
        """Return whether no row of [start, end) is selected, so that it need not be read."""
        return not self.count(start, end)

    def count(self, start: int, end: int) -> int:
        """Return how many rows of [start, end) are selected."""
        found: int = self._positions.range_cardinality(start, end)
        return found if self._is_included else end - start - found

    @classmethod
    def from_positions(cls, positions: npt.NDArray[np.int64]) -> RowSelection:
        """Return the selection of the rows at these positions."""
        return cls(BitMap64(positions.astype(np.uint64)), is_included=True)

    @classmethod
    def from_set(cls, positions: Positions) -> RowSelection:
        """Return the selection of the rows at these positions."""
        found = BitMap64()
        for part in positions.parts():
            found |= BitMap64(part.astype(np.uint64))
        return cls(found, is_included=True)

    def positions(self, start: int, count: int) -> npt.NDArray[np.int64] | None:
        """Return the positions of the selected rows of [start, start + count); None: all are."""
        end = start + count
        if not self._is_included and not self._positions.range_cardinality(start, end):
            return None
        here = self._positions & BitMap64(range(start, end))
        positions = np.asarray(here.to_array(), np.uint64).astype(np.int64)
        if self._is_included:
            return positions
        mask = np.ones(count, np.bool_)
        mask[positions - start] = False
        return np.flatnonzero(mask) + start

    def apply(self, rows: Rows, start: int) -> Rows:
        """Return the selected ones of `rows`, the first of which is row `start` of the file."""
        if not self._is_included and not self._positions.range_cardinality(
            start, start + len(rows)
        ):
            return rows
        here = self._positions & BitMap64(range(start, start + len(rows)))
        positions = (np.asarray(here.to_array(), np.uint64) - np.uint64(start)).astype(np.int64)
        if self._is_included:
            return rows.take(pa.array(positions))
        mask = np.ones(len(rows), np.bool_)
        mask[positions] = False
        return rows.filter(pa.array(mask))


SelectRows = Callable[[int, int], RowSelection | None]
"""Takes a file's number of rows and the memory for reading; returns a selection, None for all."""
