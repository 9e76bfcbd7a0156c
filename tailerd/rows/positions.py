"""Compact sets of row positions: dense ones as bits, sparse ones as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailerd.rows.hash_kernels import Rows

_PART_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Positions:
    """Ascending, distinct row positions of one input."""

    _count: int
    _start: int
    _bits: npt.NDArray[np.uint8] | None
    _numbers: Rows

    @classmethod
    def from_ascending(cls, numbers: Rows) -> Positions:
        """Return a set of ascending positions."""
        nothing = np.empty(0, np.int64)
        if not len(numbers):
            return cls(0, 0, None, nothing)
        # A multiple of eight, so that sets are joined byte by byte.
        start = int(numbers[0]) & ~7
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

    def parts(self) -> Iterator[Rows]:
        """Yield the positions as `to_numpy` returns them, some at a time."""
        if self._bits is None:
            yield self._numbers
            return
        for first in range(0, len(self._bits), _PART_BYTES):
            bits = self._bits[first : first + _PART_BYTES]
            yield np.flatnonzero(np.unpackbits(bits)) + (self._start + 8 * first)

    def union(self, other: Positions) -> Positions:
        """Return the positions that are in either."""
        if not len(other):
            return self
        if not len(self):
            return other
        start = min(self._start, other._start)
        end_byte = max(each._end_byte for each in (self, other))
        if end_byte - start // 8 >= 8 * (len(self) + len(other)):
            return Positions.from_ascending(np.union1d(self.to_numpy(), other.to_numpy()))
        bits = np.zeros(end_byte - start // 8, np.uint8)
        for each in (self, other):
            each._set_bits(bits, start // 8)
        return Positions(int(np.bitwise_count(bits).sum()), start, bits, np.empty(0, np.int64))

    @property
    def _end_byte(self) -> int:
        if self._bits is None:
            return int(self._numbers[-1]) // 8 + 1
        return self._start // 8 + len(self._bits)

    def _set_bits(self, bits: npt.NDArray[np.uint8], first_byte: int) -> None:
        if self._bits is None:
            numbers = self._numbers - 8 * first_byte
            masks = (128 >> (numbers % 8)).astype(np.uint8)
            np.bitwise_or.at(bits, numbers // 8, masks)
        else:
            at = self._start // 8 - first_byte
            bits[at : at + len(self._bits)] |= self._bits
