"""Compact sets of row positions: dense ones as bits, sparse ones as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailerd.rows.hash_kernels import Rows


@dataclass(frozen=True, slots=True)
class Positions:
    """Ascending, distinct row positions of one input."""

    _count: int
    _start: int
    _bits: npt.NDArray[np.uint8] | None
    _numbers: Rows

    @classmethod
    def of(cls, numbers: Rows) -> Positions:
        """Return a set of ascending positions."""
        nothing = np.empty(0, np.int64)
        if not len(numbers):
            return cls(0, 0, None, nothing)
        start = int(numbers[0])
        span = int(numbers[-1]) + 1 - start
        if span // 8 >= numbers.nbytes:
            return cls(len(numbers), start, None, numbers)
        is_in = np.zeros(span, np.bool_)
        is_in[numbers - start] = True
        return cls(len(numbers), start, np.packbits(is_in), nothing)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the set."""
        return self._numbers.nbytes + (0 if self._bits is None else self._bits.nbytes)

    def to_numpy(self) -> Rows:
        """Return the positions, ascending; int64, shape (n,)."""
        if self._bits is None:
            return self._numbers
        return np.flatnonzero(np.unpackbits(self._bits)) + self._start

    def union(self, other: Positions) -> Positions:
        """Return the positions that are in either."""
        if not len(other):
            return self
        if not len(self):
            return other
        return Positions.of(np.union1d(self.to_numpy(), other.to_numpy()))
