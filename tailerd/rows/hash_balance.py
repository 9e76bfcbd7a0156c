"""Finds hashes that can be skipped: those of ranges in which both sides have the same multiset.

Hashes are divided into many small ranges. Each range has two sums modulo 2^64, to which removed
rows add and from which added rows subtract. If both sums are 0, the two sides have the same hashes
in the range and every row cancels: a few megabytes prove that for any number of rows.

**Errors.** A row's contribution is scrambled from its secret hash, so that sums reveal nothing
simple about differing rows. If the sides differ in a range, one sum is 0 by chance once in 2^64,
both once in 2^128: as rare as two rows with the same hash.
"""

from __future__ import annotations

import numpy as np

from tailerd.rows.hash_kernels import Bools, Rows, scrambled
from tailerd.rows.hashing import RowHashes

_MEMORY_SHARE = 12
"""The sums use 1/12 to 1/24 of the memory."""
_LEAST_BITS, _MOST_BITS = 12, 20
_OFFSET = np.uint64(0x5851F42D4C957F2D)
"""Added so that no simple number, above all 0, is scrambled to itself."""
_ONE = np.uint32(1)
"""Has the type of the array it is added to; with another type NumPy takes 200 ns per row."""


class HashBalance:
    """Sums of the hashes of both sides by range. Not thread-safe.

    Use: add all rows, call `close` once, then query `may_differ`.

    Args:
        max_bytes: The memory that hashes may use.
    """

    def __init__(self, max_bytes: int) -> None:
        wanted = (max_bytes // (_MEMORY_SHARE * 20)).bit_length() - 1
        self._bits = min(max(wanted, _LEAST_BITS), _MOST_BITS)
        self._sums = np.zeros((2, 1 << self._bits), np.uint64)
        self._rows = np.zeros(1 << self._bits, np.uint32)
        self._is_open: Bools | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the sums."""
        return self._sums.nbytes + self._rows.nbytes

    @property
    def is_closed(self) -> bool:
        """Whether all rows were added."""
        return self._is_open is not None

    def add(self, hashes: RowHashes, *, is_removed: bool) -> None:
        """Add rows of a side to the sums."""
        places = self._places(hashes)
        one = scrambled(hashes.first + _OFFSET)
        other = scrambled(hashes.second ^ one)
        change = np.add if is_removed else np.subtract
        for sums, shares in zip(self._sums, (one, other), strict=True):
            change.at(sums, places, shares)
        np.add.at(self._rows, places, _ONE)

    def close(self, bits: int, index: int) -> int:
        """Note that all rows were added, and that those whose first bits are `index` are done.

        Returns:
            The number of other rows that may differ.
        """
        is_open: Bools = (self._sums[0] | self._sums[1]) != 0
        width = 1 << (self._bits - bits)
        is_open[index * width : (index + 1) * width] = False
        self._is_open = is_open
        return int(self._rows[is_open].sum(dtype=np.int64))

    def may_differ(self, hashes: RowHashes) -> Bools | None:
        """Return for each row whether it may lack an equal row; None before `close`."""
        return None if self._is_open is None else self._is_open[self._places(hashes)]

    def _places(self, hashes: RowHashes) -> Rows:
        # Signed, because NumPy converts unsigned indices to signed ones first.
        places: Rows = (hashes.first >> np.uint64(64 - self._bits)).view(np.int64)
        return places
