"""The exact difference of two multisets of rows, in bounded memory, by the hashes of the rows.

Rows are pushed as hashes, with their input and their positions in it. Each row cancels one equal
row of the other side. The remaining rows are returned as positions, so that only those rows need to
be read again. Of several equal rows of a side those pushed first cancel first: the result depends
on the order of pushing, but not on the seed or the memory.

All hashes of both sides are kept, 16 bytes per row. If that is too much, a pass considers only a
range of hashes, and the rows have to be pushed again for the next pass. If most rows have an equal
one, statistics of the first pass (`hash_balance`) leave little for later passes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailerd.errors import BugError
from tailerd.rows.hash_kernels import U64, Bools, Rows, scramble_numbers
from tailerd.rows.hashing import RowHashes
from tailerd.rows.positions import Positions


class Side(enum.IntEnum):
    """Which side of a difference a row is on."""

    REMOVED = 0
    ADDED = 1


@dataclass(frozen=True, slots=True)
class Leftover:
    """Rows of one input that have no equal row on the other side.

    Attributes:
        side: Removed rows are deletes, added rows are inserts.
        input: Number of the input, as pushed.
        positions: Of the rows in the input.
    """

    side: Side
    input: int
    positions: Positions


_STORED_SHARE = 0.72
"""Share of the memory for hashes; the rest is for matching them, range by range."""
_STORED_BYTES = 18
"""Memory per stored row: its hashes, and its position among those pushed with it."""
_MATCHING_BYTES = 56
"""Memory per row while it is matched."""
_MIN_MATCHED_ROWS = 1 << 16
_MATCHED_ROWS = 1 << 20
"""Rows matched at a time, unless there are many times as many: larger allocations are returned to
the system after each use, and faulted in again."""
_MAX_BITS = 12
"""Minimum size of a hash range. Smaller ones are not needed for any table, and do not help if one
row occurs so often that its hashes alone exceed the memory: such a row may exceed the limit."""


class RowDifference:
    """Collects rows of both sides, and returns those that do not cancel out.

    Use: push all rows and call `finish_pass`; while `is_complete` is false, push the same rows in
    the same order again and call it again. Each pass returns other rows. Not thread-safe; hashing,
    which dominates the time, may run in any thread.

    Args:
        max_bytes: Maximum memory, apart from the rows of one push and the result. It affects the
            number of passes, not the result.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._range = _HashRange(0, 0)
        self._chunks: tuple[list[_Chunk], list[_Chunk]] = ([], [])
        self._stored_bytes = 0
        self._balance: HashBalance | None = None
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Whether all hashes have been considered; false before the first pass."""
        return self._is_complete

    def push(self, side: Side, number: int, hashes: RowHashes, positions: Rows | int) -> None:
        """Add rows of input `number`.

        Args:
            positions: Of each row, ascending across the pushes of an input; or that of the first
                row if they are consecutive.
        """
        if self._is_complete:
            raise BugError("The difference is complete.")
        chunk = _Chunk(number, hashes, positions)
        if self._balance is not None:
            may_differ = self._balance.may_differ(hashes)
            if may_differ is None:
                self._balance.add(hashes, is_removed=side is Side.REMOVED)
            else:
                chunk = chunk.among(np.flatnonzero(may_differ))
        chunk = chunk.within(self._range)
        if not len(chunk):
            return
        self._chunks[side].append(chunk)
        self._stored_bytes += chunk.nbytes
        while self._stored_bytes > self._max_bytes * _STORED_SHARE and not self._range.is_least:
            self._consider_less()

    def finish_pass(self) -> list[Leftover]:
        """Return the rows of this pass without an equal row, by side and input."""
        removed, added = self._chunks
        rows = sum(map(len, removed)) + sum(map(len, added))
        balance_bytes = 0 if self._balance is None else self._balance.nbytes
        free = max(self._max_bytes - self._stored_bytes - rows - balance_bytes, 0)
        at_once = max(free // _MATCHING_BYTES, _MIN_MATCHED_ROWS)
        # Selecting a range scans all hashes: more than a few ranges cost more than they save by
        # being small.
        at_once = min(at_once, max(_MATCHED_ROWS, rows // 4))
        if removed and added:
            for part in self._range.parts(-(-rows // at_once)):
                _match(removed, added, part)
        self._chunks = ([], [])
        self._stored_bytes = 0
        following = self._following()
        self._is_complete = following is None
        self._range = following or self._range
        left = (_leftovers(Side.REMOVED, removed), _leftovers(Side.ADDED, added))
        return [each for side in left for each in side]

    def _following(self) -> _HashRange | None:
        """Return the range of the next pass; None after the last."""
        following = self._range.following
        if following is None or self._balance is None or self._balance.is_closed:
            return following
        rows = self._balance.close(self._range.bits, self._range.index)
        if rows * _STORED_BYTES <= self._max_bytes * _STORED_SHARE:
            # All the rest at once.
            following = _HashRange(0, 0) if rows else None
        return following

    def _consider_less(self) -> None:
        """Leave half of the hashes to later passes."""
        if self._balance is None:
            # Nothing has been left out yet, so the chunks have all rows so far.
            self._balance = HashBalance(self._max_bytes)
            for side, chunks in zip(Side, self._chunks, strict=True):
                for chunk in chunks:
                    self._balance.add(chunk.hashes, is_removed=side is Side.REMOVED)
        self._range = self._range.first_half
        for side in (Side.REMOVED, Side.ADDED):
            # In position, chunk by chunk: two copies of all chunks would exceed the memory.
            chunks = self._chunks[side]
            for position, chunk in enumerate(chunks):
                chunks[position] = chunk.within(self._range)
            self._chunks[side][:] = [chunk for chunk in chunks if len(chunk)]
        self._stored_bytes = sum(chunk.nbytes for side in self._chunks for chunk in side)


@dataclass(frozen=True, slots=True)
class _HashRange:
    """The hashes whose first `bits` bits are `index`."""

    bits: int
    index: int

    @property
    def is_least(self) -> bool:
        return self.bits >= _MAX_BITS

    @property
    def first_half(self) -> _HashRange:
        return _HashRange(self.bits + 1, self.index * 2)

    @property
    def following(self) -> _HashRange | None:
        """The largest range that may follow; None after the last.

        Not one of the same size: a very frequent row should make only its own range small.
        """
        bits, index = self.bits, self.index + 1
        while index % 2 == 0 and bits:
            bits, index = bits - 1, index // 2
        return _HashRange(bits, index) if bits else None

    def parts(self, count: int) -> Iterator[_HashRange]:
        """Yield at least `count` ranges of equal size that make up this one."""
        more = (count - 1).bit_length()
        for part in range(1 << more):
            yield _HashRange(self.bits + more, (self.index << more) + part)

    def select(self, first: U64) -> Rows | None:
        """Return the positions of the hashes within this range; None: all of them."""
        if not self.bits:
            return None
        return np.flatnonzero(first >> np.uint64(64 - self.bits) == np.uint64(self.index))


class _Chunk:
    """Rows of one push, or those within a range of hashes."""

    __slots__ = ("_left_positions", "_positions", "hashes", "is_left", "number")

    def __init__(
        self,
        number: int,
        hashes: RowHashes,
        positions: Rows | int,
        row_positions: npt.NDArray[np.unsignedinteger] | None = None,
    ) -> None:
        self.number = number
        self.hashes = hashes
        self._positions = positions
        self._left_positions = row_positions
        """Of the rows among those pushed, in the smallest integer type; None: all rows."""
        self.is_left: Bools | None = None
        """Which rows are left over; None while all are."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def nbytes(self) -> int:
        positions = 0 if isinstance(self._positions, int) else self._positions.nbytes
        return (
            16 * len(self)
            + positions
            + (0 if self._left_positions is None else self._left_positions.nbytes)
        )

    def within(self, hashes: _HashRange) -> _Chunk:
        positions = hashes.select(self.hashes.first)
        return self if positions is None else self.among(positions)

    def among(self, positions: Rows) -> _Chunk:
        if len(positions) == len(self):
            return self
        taken = self.hashes.take(positions)
        if not isinstance(self._positions, int):
            return _Chunk(self.number, taken, self._positions[positions])
        if self._left_positions is None:
            among = positions.astype(np.min_scalar_type(max(len(self) - 1, 0)))
        else:
            among = self._left_positions[positions]
        return _Chunk(self.number, taken, self._positions, among)

    def cancel(self, positions: Rows) -> None:
        """Note that these rows have an equal one on the other side."""
        if self.is_left is None:
            self.is_left = np.ones(len(self), np.bool_)
        self.is_left[positions] = False

    def take_left_rows(self) -> Rows:
        """Return the positions of the rows left over."""
        is_left = np.ones(len(self), np.bool_) if self.is_left is None else self.is_left
        positions = np.flatnonzero(is_left)
        if not isinstance(self._positions, int):
            return self._positions[positions]
        if self._left_positions is not None:
            positions = self._left_positions[positions].astype(np.int64)
        return positions + self._positions


def _leftovers(side: Side, chunks: list[_Chunk]) -> Iterator[Leftover]:
    """Yield the rows left over for each input; chunks are released first."""
    by_input: dict[int, list[Rows]] = {}
    for chunk in chunks:
        left = chunk.take_left_rows()
        if len(left):
            by_input.setdefault(chunk.number, []).append(left)
    chunks.clear()
    for number in sorted(by_input):
        yield Leftover(side, number, Positions.from_ascending(np.concatenate(by_input.pop(number))))


def _match(removed: list[_Chunk], added: list[_Chunk], part: _HashRange) -> None:
    """Cancel equal rows whose hashes are in a range."""
    chunks = [*removed, *added]
    selected = [part.select(chunk.hashes.first) for chunk in chunks]
    counts = [
        len(chunk) if positions is None else len(positions)
        for chunk, positions in zip(chunks, selected, strict=True)
    ]
    num_removed = sum(counts[: len(removed)])
    if num_removed in (0, sum(counts)):
        return
    hashes = np.empty((sum(counts), 2), np.uint64)
    start = 0
    for chunk, positions, count in zip(chunks, selected, counts, strict=True):
        found = chunk.hashes if positions is None else chunk.hashes.take(positions)
        hashes[start : start + count, 0] = found.first
        hashes[start : start + count, 1] = found.second
        start += count
    is_left = find_unmatched(hashes, num_removed)
    del hashes
    start = 0
    for chunk, positions, count in zip(chunks, selected, counts, strict=True):
        cancelled = np.flatnonzero(~is_left[start : start + count])
        start += count
        chunk.cancel(cancelled if positions is None else positions[cancelled])


def find_unmatched(hashes: U64, num_removed: int) -> Bools:
    """Return which rows have no equal row on the other side; each row cancels at most once.

    Args:
        hashes: Both halves of the hash of each row, shape (n, 2), contiguous; the removed rows
            before the added ones.

    Returns:
        Shape (n,). Of several equal rows of a side the last are unmatched.
    """
    order, is_like = prefix_order(hashes[:, 0])
    is_left = np.ones(len(order), np.bool_)
    # The usual case: one removed row and one added row.
    is_next_like = np.append(is_like[1:], False)
    is_second = is_like & ~is_next_like
    is_second[1:] &= ~is_like[:-1]
    positions = np.flatnonzero(is_second)
    one, other = order[positions - 1], order[positions]
    # Rows with the same prefix are in the order of their numbers: removed ones first.
    is_equal = _are_equal(hashes, one, other)
    is_equal &= one < num_removed
    is_equal &= other >= num_removed
    if not is_equal.all():
        one, other = one[is_equal], other[is_equal]
    is_left[one] = False
    is_left[other] = False
    # The others: three or more rows with the same prefix.
    is_many = is_like | is_next_like
    is_many[positions] = False
    is_many[positions - 1] = False
    if is_many.any():
        rows, is_same = resolve_runs(order[is_many], is_like[is_many], hashes[:, 0], hashes[:, 1])
        _match_runs(rows, is_same, num_removed, is_left)
    return is_left


def _are_equal(hashes: U64, one: Rows, other: Rows) -> Bools:
    """Return which rows of two lists have the same hash."""
    # Gathering dominates the time, so both halves at once: 16 bytes as one number for NumPy.
    whole = hashes.view(np.complex128)[:, 0]
    halves = whole[one].view(np.uint64) == whole[other].view(np.uint64)
    found: Bools = halves.view(np.uint16) == 0x0101
    return found


def _match_runs(rows: Rows, is_same: Bools, num_removed: int, is_left: Bools) -> None:
    """Match rows in runs of equal ones (`is_same`); set `is_left` to false for matched rows."""
    starts = np.flatnonzero(~is_same)
    lengths = np.diff(starts, append=len(rows))
    removed = np.add.reduceat((rows < num_removed).astype(np.int64), starts)
    matched = np.minimum(removed, lengths - removed)
    rank = np.arange(len(rows)) - np.repeat(starts, lengths)
    # Removed rows come before added ones.
    rank -= np.where(rows < num_removed, 0, np.repeat(removed, lengths))
    is_left[rows[rank < np.repeat(matched, lengths)]] = False


# Hashes are divided into many small ranges. Each range has two sums modulo 2^64, to which removed
# rows add and from which added rows subtract. If both sums are 0, the two sides have the same
# hashes in the range and every row cancels: a few megabytes prove that for any number of rows.
#
# **Errors.** A row's contribution is scrambled from its secret hash, so that sums reveal nothing
# simple about differing rows. If the sides differ in a range, one sum is 0 by chance once in 2^64,
# both once in 2^128: as rare as two rows with the same hash.

_MEMORY_SHARE = 12
"""The sums use 1/12 to 1/24 of the memory."""
_MIN_BALANCE_BITS, _MAX_BALANCE_BITS = 12, 20
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
        requested = (max_bytes // (_MEMORY_SHARE * 20)).bit_length() - 1
        self._bits = min(max(requested, _MIN_BALANCE_BITS), _MAX_BALANCE_BITS)
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
        positions = self._left_positions(hashes)
        one = scramble_numbers(hashes.first + _OFFSET)
        other = scramble_numbers(hashes.second ^ one)
        change = np.add if is_removed else np.subtract
        for sums, shares in zip(self._sums, (one, other), strict=True):
            change.at(sums, positions, shares)
        np.add.at(self._rows, positions, _ONE)

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
        return None if self._is_open is None else self._is_open[self._left_positions(hashes)]

    def _left_positions(self, hashes: RowHashes) -> Rows:
        # Signed, because NumPy converts unsigned indices to signed ones first.
        positions: Rows = (hashes.first >> np.uint64(64 - self._bits)).view(np.int64)
        return positions


def prefix_order(first: U64) -> tuple[Rows, Bools]:
    """Return an order of rows in which those with the same hash prefix are adjacent.

    Args:
        first: First half of the hashes, shape (n,).

    Returns:
        Numbers of the rows, ascending among those with the same prefix; and for each in that order
        whether it has the prefix of the one before. The prefix has the bits that a row's number
        leaves of 64: few rows are equal only in those.
    """
    # The first bits of the hash and the row's number in one integer: sorting is several times
    # faster than `argsort`.
    count = len(first)
    mask = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    keys = first & ~mask
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    is_like = np.zeros(count, np.bool_)
    np.less_equal(keys[1:] ^ keys[:-1], mask, out=is_like[1:])
    keys &= mask
    return keys.view(np.int64), is_like


def equal_runs(first: U64, second: U64) -> tuple[Rows, Bools]:
    """Return an order of rows in which equal ones are adjacent.

    Returns:
        Numbers of the rows, ascending among equal ones; and for each in that order whether it is
        equal to the one before.
    """
    order, is_like = prefix_order(first)
    return resolve_runs(order, is_like, first, second)


def resolve_runs(order: Rows, is_like: Bools, first: U64, second: U64) -> tuple[Rows, Bools]:
    """Return the result of `equal_runs` for rows in their `prefix_order`."""
    is_same = _is_same(order, first, second)
    if (is_like & ~is_same).any():
        # Different rows with the same prefix: sort by all bits, then by number.
        order = order[np.lexsort((order, second[order], first[order]))]
        is_same = _is_same(order, first, second)
    return order, is_same


def _is_same(order: Rows, first: U64, second: U64) -> Bools:
    is_same = np.zeros(len(order), np.bool_)
    for half in (first, second):
        in_order = half[order]
        same = in_order[1:] == in_order[:-1]
        if half is first:
            is_same[1:] = same
        else:
            is_same[1:] &= same
    return is_same
