"""The arithmetic of row hashes: two sums modulo 2^64 per row, to which every column adds its share.

A value of up to 64 bits, x, adds `k * byteswap(x * o)` to each sum, with odd secret factors that
differ per column and per sum. `x -> byteswap(x * o)` is one to one, so that two rows that differ in
one such value never have equal sums; where several values differ, the sums are equal only if two
independent secret linear combinations of scrambled differences are both 0.
Longer values are words of 64 bits, each with its own factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

BLOCK_ROWS = 16_384
"""Sums of this many rows, and their summands, fit the processor's cache."""

_NARROW_WORDS = 8
"""Words of a text that are hashed word by word for all rows; the rest is hashed at once."""


@dataclass(slots=True)
class Sums:
    """The two sums of each row, updated in place; shape (n,) each."""

    first: U64
    second: U64


@dataclass(frozen=True, slots=True)
class Factors:
    """Secret odd numbers of one column; further numbers are derived from the seeds on demand."""

    words_first: tuple[np.uint64, ...]
    words_second: tuple[np.uint64, ...]
    scramble: np.uint64
    first: np.uint64
    second: np.uint64
    null_first: np.uint64
    null_second: np.uint64
    length_first: np.uint64
    length_second: np.uint64
    seed_first: np.uint64
    seed_second: np.uint64

    @classmethod
    def derive(cls, seed: int, path: tuple[int, ...]) -> Factors:
        """Return the factors of the column at `path`, the same in every process."""
        sequence = np.random.SeedSequence(seed, spawn_key=path)
        numbers = sequence.generate_state(9 + 2 * _NARROW_WORDS, np.uint64) | np.uint64(1)
        words = numbers[9:].reshape(2, _NARROW_WORDS)
        return cls(tuple(words[0]), tuple(words[1]), *numbers[:9])


def add_values(values: U64, factors: Factors, sums: Sums) -> None:
    """Add the share of a column of numbers; `values` is overwritten."""
    _add_scrambled(values, factors.scramble, factors.first, factors.second, sums)


def _add_scrambled(
    values: U64, scramble: np.uint64, first: np.uint64, second: np.uint64, sums: Sums
) -> None:
    np.multiply(values, scramble, out=values)
    values.byteswap(inplace=True)
    share = np.multiply(values, first)
    sums.first += share
    np.multiply(values, second, out=share)
    sums.second += share


def add_nulls(is_null: Bools, factors: Factors, sums: Sums) -> None:
    """Add the share of nulls."""
    nulls = is_null.astype(np.uint64)
    sums.first += nulls * factors.null_first
    sums.second += nulls * factors.null_second


def add_lengths(lengths: Rows, factors: Factors, sums: Sums) -> None:
    """Add the share of the lengths of texts or lists."""
    counts = lengths.view(np.uint64)
    sums.first += counts * factors.length_first
    sums.second += counts * factors.length_second


@dataclass(frozen=True, slots=True)
class Texts:
    """Byte strings in one buffer.

    Attributes:
        data: The bytes, shape (b,).
        starts, lengths: Where each string starts, ascending, and its length; 0 for a null.
        words: The eight bytes at each position of `data`, as numbers; shape (max(b - 7, 0),).
    """

    data: npt.NDArray[np.uint8]
    starts: Rows
    lengths: Rows
    words: U64

    @classmethod
    def pad(cls, data: npt.NDArray[np.uint8], starts: Rows, lengths: Rows) -> Texts:
        """Return the texts of a buffer, padded with zeros if its last word is incomplete."""
        if len(data) < 8 or (len(starts) and starts[-1] > len(data) - 8):
            # A word is read at the start of each text, even of a short one at the very end.
            used_from = int(starts[0]) if len(starts) else 0
            data = np.concatenate([data[used_from:], np.zeros(8, np.uint8)])
            starts = starts - used_from
        words = np.ndarray(len(data) - 7, dtype="<u8", buffer=data.data, strides=(1,))
        return cls(data, starts, lengths, words)

    def add(self, rows: slice, factors: Factors, sums: Sums) -> None:
        """Add the share of some of the texts."""
        starts, lengths = self.starts[rows], self.lengths[rows]
        longest = int(lengths.max(initial=0))
        add_lengths(lengths, factors, sums)
        if not longest:
            return
        if longest == lengths.min() and self._add_evenly(starts, longest, factors, sums):
            return
        first = self.words[starts]
        if longest <= 8:
            first <<= (64 - 8 * lengths).view(np.uint64)
        else:
            first <<= (64 - 8 * np.minimum(lengths, 8)).view(np.uint64)
        _add_scrambled(
            first, factors.scramble, factors.words_first[0], factors.words_second[0], sums
        )
        for number in range(1, min(-(-longest // 8), _NARROW_WORDS)):
            self._add_word(number, starts, lengths, factors, sums)
        if longest > 8 * _NARROW_WORDS:
            self._add_rest(starts, lengths, factors, sums)

    def _add_evenly(self, starts: Rows, length: int, factors: Factors, sums: Sums) -> bool:
        """Add texts of one length if they are contiguous; return whether they were added."""
        start, count = int(starts[0]), len(starts)
        width = -(-length // 8)
        end = start + (count - 1) * length + max(length, 8)
        is_even = int(starts[-1]) - start == (count - 1) * length
        if width > _NARROW_WORDS or not is_even or end > len(self.data):
            return False
        for number in range(width):
            position = start + max(min(8 * number, length - 8), 0)
            found: U64 = np.array(
                np.ndarray(
                    (count,), "<u8", buffer=self.data.data, offset=position, strides=(length,)
                )
            )
            if length < 8:
                found <<= np.uint64(64 - 8 * length)
            first, second = factors.words_first[number], factors.words_second[number]
            _add_scrambled(found, factors.scramble, first, second, sums)
        return True

    def _add_word(
        self, number: int, starts: Rows, lengths: Rows, factors: Factors, sums: Sums
    ) -> None:
        """Add word `number` of texts that have it; the last word overlaps the one before."""
        rows = np.flatnonzero(lengths > 8 * number)
        if not len(rows):
            return
        is_all = len(rows) == len(lengths)
        begins = starts if is_all else starts[rows]
        ends = begins + (lengths if is_all else lengths[rows])
        found = self.words[np.minimum(begins + 8 * number, ends - 8)]
        first, second = factors.words_first[number], factors.words_second[number]
        if is_all:
            _add_scrambled(found, factors.scramble, first, second, sums)
            return
        part = Sums(sums.first[rows], sums.second[rows])
        _add_scrambled(found, factors.scramble, first, second, part)
        sums.first[rows], sums.second[rows] = part.first, part.second

    def _add_rest(self, starts: Rows, lengths: Rows, factors: Factors, sums: Sums) -> None:
        """Add the words after the first few, of all texts that have them."""
        skipped = 8 * _NARROW_WORDS
        rows = np.flatnonzero(lengths > skipped)
        counts = (lengths[rows] - skipped + 7) // 8
        numbers = count_within_runs(counts)
        begins = np.repeat(starts[rows] + skipped, counts) + 8 * numbers
        np.minimum(begins, np.repeat(starts[rows] + lengths[rows] - 8, counts), out=begins)
        words = self.words[begins]
        words *= factors.scramble
        words.byteswap(inplace=True)
        sums.first[rows] += sum_runs(words * draw_numbers(numbers, factors.seed_first), counts)
        sums.second[rows] += sum_runs(words * draw_numbers(numbers, factors.seed_second), counts)


def count_within_runs(counts: Rows) -> Rows:
    """Return 0, 1, 2, … for each run of `counts` positions; shape (sum of counts,)."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)


def sum_runs(values: U64, counts: Rows) -> U64:
    """Return the sum, modulo 2^64, of each run of values; shape of `counts`."""
    running = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, out=running[1:])
    ends = np.cumsum(counts)
    found: U64 = running[ends] - running[ends - counts]
    return found


def draw_numbers(positions: Rows, seed: np.uint64) -> U64:
    """Return a secret odd number for each position."""
    return scramble_numbers(positions.view(np.uint64) + seed) | np.uint64(1)


def scramble_numbers(values: U64) -> U64:
    """Return each number scrambled by a bijection, so that sums reveal nothing simple."""
    found = values * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(30)
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found
