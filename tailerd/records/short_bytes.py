"""Zigzag varints and other short byte strings, one per row, as NumPy integers.

An Arrow binary view stores up to twelve bytes inline, so a column of short strings can be joined
into a larger one without copying each string.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Word = TypeVar("Word", np.uint64, np.int64)

MAX_INLINE_BYTES = 12

_SEVEN_BITS = np.uint64(0x7F)


@dataclass(frozen=True, slots=True)
class ShortBytes:
    """Byte strings of at most twelve bytes; arrays of shape (n,), or of shape (1,) for all rows.

    Attributes:
        low: Bytes 0 to 7 as a little-endian number; zero after the end.
        high: Bytes 8 to 11 in the same form; None if no string is that long.
        sizes: Lengths in bytes.
        max_size: Upper bound of the lengths.
    """

    low: Words
    high: Words | None
    sizes: Numbers
    max_size: int

    def fits_before(self, other: ShortBytes) -> bool:
        """Return whether `then(other)` is possible."""
        return self.max_size <= 8 and self.max_size + other.max_size <= MAX_INLINE_BYTES

    def then(self, other: ShortBytes) -> ShortBytes:
        """Return these bytes followed by the others."""
        shift = (self.sizes << 3).view(np.uint64)
        max_size = self.max_size + other.max_size
        high = None
        if max_size > 8:
            # A shift by 64 bits is zero in NumPy. `self` has no high word, because it fits.
            high = other.low >> (np.uint64(64) - shift)
            if other.high is not None:
                high = high | (other.high << shift)
        return ShortBytes(self.low | (other.low << shift), high, self.sizes + other.sizes, max_size)

    def take(self, rows: Numbers) -> ShortBytes:
        """Return the given rows, in that order."""
        return ShortBytes(
            _take_words(self.low, rows),
            None if self.high is None else _take_words(self.high, rows),
            _take_words(self.sizes, rows),
            self.max_size,
        )

    def slice_rows(self, start: int, end: int) -> ShortBytes:
        """Return the rows from `start` until `end`, without copying."""
        return ShortBytes(
            _cut(self.low, start, end),
            None if self.high is None else _cut(self.high, start, end),
            _cut(self.sizes, start, end),
            self.max_size,
        )


def _cut(words: npt.NDArray[Word], start: int, end: int) -> npt.NDArray[Word]:
    return words if len(words) == 1 else words[start:end]


def _take_words(words: npt.NDArray[Word], rows: Numbers) -> npt.NDArray[Word]:
    return words if len(words) == 1 else np.take(words, rows)


def constant(raw: bytes) -> ShortBytes:
    """Return the same bytes, at most twelve, for every row."""
    padded = np.frombuffer(raw.ljust(16, b"\0"), dtype="<u8").astype(np.uint64)
    high = padded[1:] if len(raw) > 8 else None
    return ShortBytes(padded[:1], high, np.array([len(raw)]), len(raw))


def varints(numbers: Numbers) -> ShortBytes:
    """Return the zigzag varints of 64-bit numbers, one to ten bytes each."""
    if not len(numbers):
        return constant(b"")
    lowest, highest = int(numbers.min()), int(numbers.max())
    max_size = max(measure_varint(lowest), measure_varint(highest))
    if lowest >= -1 and highest < _NUM_READY:
        # Index -1 selects the last entry, which is that of -1.
        return ShortBytes(_READY_WORDS[numbers], None, _READY_SIZES[numbers], max_size)
    return _compute_bytes(numbers, max_size)


def _compute_bytes(numbers: Numbers, max_size: int) -> ShortBytes:
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    low = zigzag & _SEVEN_BITS
    high = np.zeros(len(numbers), dtype=np.uint64)
    sizes = np.ones(len(numbers), dtype=np.int64)
    for index in range(1, max_size):
        rest = zigzag >> np.uint64(7 * index)
        has_more = rest != 0
        goes_on = has_more.astype(np.uint64) << np.uint64(7)
        # The previous byte has its continuation bit set if more bits follow.
        if index <= 8:
            low |= goes_on << np.uint64(8 * (index - 1))
        else:
            high |= goes_on
        part = rest & _SEVEN_BITS
        if index < 8:
            low |= part << np.uint64(8 * index)
        else:
            high |= part << np.uint64(8 * (index - 8))
        sizes += has_more
    return ShortBytes(low, high if max_size > 8 else None, sizes, max_size)


def measure_varint(number: int) -> int:
    """Return the length of the zigzag varint of a number."""
    return max(1, (((number << 1) ^ (number >> 63)).bit_length() + 6) // 7)


def varint(number: int) -> bytes:
    """Return the zigzag varint of one number."""
    # Index -1 selects the last entry, which is that of -1.
    return _READY[number] if -1 <= number < _NUM_READY else _varint(number)


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    raw = bytearray()
    while zigzag > 0x7F:
        raw.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    raw.append(zigzag)
    return bytes(raw)


_NUM_READY = 2**13
_READY = [_varint(number) for number in (*range(_NUM_READY), -1)]
_READY_WORDS = np.array([int.from_bytes(raw, "little") for raw in _READY], dtype=np.uint64)
_READY_SIZES = np.array([len(raw) for raw in _READY], dtype=np.int64)
