"""Which hashes need not be looked at: those of ranges in which both sides have the same multiset.

Hashes are divided into many small ranges. Of each range two sums modulo 2^64 are kept, to which
removed rows add and from which added rows take away. Where both sums are 0 the two sides have the
same hashes there, so that every row cancels: a few megabytes tell that of any number of rows.

**Errors.** What a row counts is scrambled from its secret hash, so that sums say nothing simple of
rows that differ. Where the sides differ in a range, a sum is 0 by chance once in 2^64, both once in
2^128: as seldom as two rows have one hash.
"""

from __future__ import annotations

import numpy as np

from tailerd.rows.hash_kernels import Bools, Rows, scrambled
from tailerd.rows.hashing import RowHashes

_MEMORY_SHARE = 12
"""Of the memory the sums take one part in so many, or in twice as many."""
_LEAST_BITS, _MOST_BITS = 12, 20
_OFFSET = np.uint64(0x5851F42D4C957F2D)
"""Added so that no simple number, 0 least of all, is scrambled to itself."""
_ONE = np.uint32(1)
"""Of the type it is added to: of another, NumPy takes 200 ns a row."""


class HashBalance:
    """Sums of the hashes of both sides by range. Not thread-safe.

    Use: add all rows; then `close` once, and ask which may differ.

    Args:
        max_bytes: The memory that hashes may take.
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
        """Take rows of a side into account."""
        places = self._places(hashes)
        one = scrambled(hashes.first + _OFFSET)
        other = scrambled(hashes.second ^ one)
        change = np.add if is_removed else np.subtract
        for sums, shares in zip(self._sums, (one, other), strict=True):
            change.at(sums, places, shares)
        np.add.at(self._rows, places, _ONE)

    def close(self, bits: int, index: int) -> int:
        """Note that all rows were added, and those whose first bits are `index` are done.

        Returns:
            How many of the others may differ.
        """
        is_open: Bools = (self._sums[0] | self._sums[1]) != 0
        width = 1 << (self._bits - bits)
        is_open[index * width : (index + 1) * width] = False
        self._is_open = is_open
        return int(self._rows[is_open].sum(dtype=np.int64))

    def may_differ(self, hashes: RowHashes) -> Bools | None:
        """Return for each row whether it may have no equal one; None: not all were added."""
        return None if self._is_open is None else self._is_open[self._places(hashes)]

    def _places(self, hashes: RowHashes) -> Rows:
        # Signed, as NumPy wants indices: of others it makes signed ones first.
        places: Rows = (hashes.first >> np.uint64(64 - self._bits)).view(np.int64)
        return places
