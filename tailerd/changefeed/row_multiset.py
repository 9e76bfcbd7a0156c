"""Multisets of rows compared in constant memory, however many rows they have.

Each row is a 128-bit hash. Hashes are summed in buckets, with the sign of the row's change: two
multisets are equal if all sums are. A difference shows in the buckets of its rows, so that a second
pass needs to keep only those few rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

BUCKETS = 1 << 16

Buckets = npt.NDArray[np.int64]
_MASK = np.uint64(BUCKETS - 1)
_HALF = 0xFFFF_FFFF_FFFF_FFFF


class RowMultiset:
    """How often each row occurs, as sums. Counts may be negative, also at the end."""

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self._highs = np.zeros(BUCKETS, np.uint64)
        self._lows = np.zeros(BUCKETS, np.uint64)

    @property
    def total(self) -> int:
        """Number of rows, removed ones subtracted."""
        return int(self._counts.sum())

    def add(self, rows: Sequence[bytes], signs: Sequence[int]) -> None:
        """Count rows by their bytes: +1 for an added row, -1 for a removed one."""
        highs, lows = _hashes(rows)
        sign = np.array(signs, np.int64)
        buckets = _bucket(lows)
        np.add.at(self._counts, buckets, sign)
        # Sums may wrap around: all that matters is that adding and removing cancel out.
        factor = sign.astype(np.uint64)
        np.add.at(self._highs, buckets, highs * factor)
        np.add.at(self._lows, buckets, lows * factor)

    def differing(self, other: RowMultiset) -> Buckets:
        """Return the buckets whose rows differ, ascending; empty if both are equal."""
        same = (
            (self._counts == other._counts)
            & (self._highs == other._highs)
            & (self._lows == other._lows)
        )
        return np.flatnonzero(~same)


class RowCounts:
    """Exact counts of the rows of a few buckets; rows that cancel out take no memory."""

    def __init__(self, buckets: Buckets) -> None:
        self.counts: Counter[bytes] = Counter()
        self._is_requested = np.zeros(BUCKETS, np.bool_)
        self._is_requested[buckets] = True

    def add(self, rows: Sequence[bytes], signs: Iterable[int]) -> None:
        """Count the rows that fall into the buckets."""
        requested = self._is_requested[_bucket(_hashes(rows)[1])].tolist()
        for row, sign, is_requested in zip(rows, signs, requested, strict=True):
            if is_requested:
                count = self.counts[row] + sign
                if count:
                    self.counts[row] = count
                else:
                    del self.counts[row]


def _hashes(rows: Sequence[bytes]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    digests = [xxhash.xxh3_128_intdigest(row) for row in rows]
    highs = np.array([digest >> 64 for digest in digests], np.uint64)
    return highs, np.array([digest & _HALF for digest in digests], np.uint64)


def _bucket(lows: npt.NDArray[np.uint64]) -> Buckets:
    return (lows & _MASK).astype(np.int64)
