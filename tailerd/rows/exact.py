"""The exact difference of two sets of inputs: rows in place, then hashes, then variants by value.

Combines the stages for one group of inputs. The caller provides reading: it is called for the rows
of an input once per pass, and must return the same rows in the same order each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailerd.rows.difference import Leftover, RowDifference, Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.hash_kernels import Bools, Rows
from tailerd.rows.hashing import RowHasher, RowHashes, VariantEquality, has_variants
from tailerd.rows.positions import Positions

PositionedRows = tuple[Rows | int, pa.RecordBatch]
"""Rows and their positions in their input, or that of the first if they are consecutive."""

ReadRows = Callable[[Side, int, Positions | None], Iterable[PositionedRows]]
"""Reads the rows of an input, in order: those at the given positions, or all (None)."""


@dataclass(frozen=True, slots=True)
class HashedRows:
    """The arguments of `RowDifference.push`."""

    side: Side
    input: int
    hashes: RowHashes
    positions: Rows | int

    def push_to(self, difference: RowDifference) -> None:
        """Push the rows to a difference."""
        difference.push(self.side, self.input, self.hashes, self.positions)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of one group.

    Attributes:
        schema: Of the rows of all inputs.
        removed, added: Numbers of the inputs.
        aligned: Pairs of a removed and an added input whose rows may be in the same order; each
            input is in one pair at most. A wrong guess costs little, and affects only which of
            several equal rows are left over.
        read: Reads one of them.
    """

    schema: pa.Schema
    removed: Sequence[int]
    added: Sequence[int]
    aligned: Sequence[tuple[int, int]] = ()
    read: ReadRows

    def only(self, left: Sequence[Leftover]) -> Inputs:
        """Return the inputs restricted to the given rows."""
        positions = {(each.side, each.input): each.positions for each in left}
        numbers = [[each.input for each in left if each.side is side] for side in Side]

        def read(side: Side, number: int, requested: Positions | None) -> Iterable[PositionedRows]:
            return self.read(
                side, number, positions[side, number] if requested is None else requested
            )

        return Inputs(schema=self.schema, removed=numbers[0], added=numbers[1], read=read)

    @property
    def alone(self) -> list[tuple[Side, int]]:
        """The inputs that are not in a pair."""
        paired = ({one for one, _ in self.aligned}, {other for _, other in self.aligned})
        return [
            (side, number)
            for side, numbers in ((Side.REMOVED, self.removed), (Side.ADDED, self.added))
            for number in numbers
            if number not in paired[side]
        ]


@dataclass(frozen=True, kw_only=True)
class RowMatcher:
    """How rows of a schema are hashed and compared; may be shared by threads.

    Attributes:
        schema: Of the rows.
        seed: As for `RowHasher`.
        variants: When variants are equal.
    """

    schema: pa.Schema
    seed: int
    variants: VariantEquality = VariantEquality.BY_BYTES
    hasher: RowHasher = field(init=False)
    comparer: RowComparer = field(init=False)

    def __post_init__(self) -> None:
        arguments = (self.schema, self.seed, self.variants)
        object.__setattr__(self, "hasher", RowHasher(*arguments))
        object.__setattr__(self, "comparer", RowComparer(*arguments))

    def hash_rows(
        self, side: Side, number: int, rows: Iterable[PositionedRows]
    ) -> Iterator[HashedRows]:
        """Yield the hashes of the rows of one input."""
        for positions, batch in rows:
            yield HashedRows(side, number, self.hasher.hash(batch), positions)

    def hashed_pair(
        self,
        numbers: tuple[int, int],
        removed: Iterable[PositionedRows],
        added: Iterable[PositionedRows],
    ) -> Iterator[HashedRows]:
        """Yield the hashes of rows of a removed and an added input that are not equal in place."""
        sides = AlignedRows(self.comparer, self.hasher)
        waiting = {Side.REMOVED: iter(removed), Side.ADDED: iter(added)}
        while waiting:
            side = sides.lagging_side if sides.lagging_side in waiting else next(iter(waiting))
            part = next(waiting[side], None)
            if part is None:
                del waiting[side]
                left = sides.end(side)
            else:
                left = sides.push(side, *part)
            yield from self._hashed_unaligned(numbers, left)

    def _hashed_unaligned(
        self, numbers: tuple[int, int], rows: Iterator[Unaligned]
    ) -> Iterator[HashedRows]:
        for each in rows:
            hashes = self.hasher.hash(each.rows)
            yield HashedRows(each.side, numbers[each.side], hashes, each.positions)


def exact_difference(inputs: Inputs, *, seed: int, max_bytes: int) -> list[Leftover]:
    """Return the removed rows that were not added, and the added rows that were not removed.

    Args:
        inputs: The inputs to compare.
        seed: Random and secret; as for `RowHasher`. The result does not depend on it.
        max_bytes: Memory to use, apart from the batches and the result.

    Returns:
        One for each input with leftover rows, removed ones first, by number.
    """
    matcher = RowMatcher(schema=inputs.schema, seed=seed)
    left = _difference(matcher, inputs, max_bytes)
    sides = {each.side for each in left}
    if len(sides) < 2 or not has_variants(inputs.schema):
        return left
    # Equal bytes have cancelled; the few rows left may still be equal by value.
    decoding = RowMatcher(schema=inputs.schema, seed=seed, variants=VariantEquality.BY_VALUE)
    return _difference(decoding, inputs.only(left), max_bytes)


def _difference(matcher: RowMatcher, inputs: Inputs, max_bytes: int) -> list[Leftover]:
    difference = RowDifference(max_bytes=max_bytes)
    found: dict[tuple[Side, int], Positions] = {}
    while not difference.is_complete:
        for rows in _all_hashed(matcher, inputs):
            rows.push_to(difference)
        for left in difference.finish_pass():
            key = (left.side, left.input)
            earlier = found.get(key)
            found[key] = left.positions if earlier is None else earlier.union(left.positions)
    return [Leftover(*key, positions) for key, positions in sorted(found.items(), key=_key)]


def _key(item: tuple[tuple[Side, int], Positions]) -> tuple[Side, int]:
    return item[0]


def _all_hashed(matcher: RowMatcher, inputs: Inputs) -> Iterator[HashedRows]:
    for removed, added in inputs.aligned:
        yield from matcher.hashed_pair(
            (removed, added),
            inputs.read(Side.REMOVED, removed, None),
            inputs.read(Side.ADDED, added, None),
        )
    for side, number in inputs.alone:
        yield from matcher.hash_rows(side, number, inputs.read(side, number, None))


def compare_batches(
    removed: Sequence[pa.RecordBatch], added: Sequence[pa.RecordBatch], *, seed: int
) -> tuple[pa.Table, pa.Table]:
    """Return the rows of `removed` that are not in `added`, and the other way round, as multisets.

    Args:
        removed, added: Rows of one schema; at least one batch in all.
        seed: Random and secret; as for `RowHasher`.
    """
    schema = [*removed, *added][0].schema
    sides = (pa.Table.from_batches(removed, schema), pa.Table.from_batches(added, schema))

    def read(side: Side, _: int, positions: Positions | None) -> Iterator[PositionedRows]:
        if positions is not None:
            at = positions.to_numpy()
            rows = sides[side].take(pa.array(at)).combine_chunks()
            yield from ((at, batch) for batch in rows.to_batches())
            return
        start = 0
        for batch in sides[side].to_batches():
            yield start, batch
            start += batch.num_rows

    inputs = Inputs(schema=schema, removed=[0], added=[0], aligned=[(0, 0)], read=read)
    left = exact_difference(inputs, seed=seed, max_bytes=1 << 62)
    row_positions = {each.side: each.positions.to_numpy() for each in left}
    nothing = np.empty(0, np.int64)
    deleted, inserted = (
        sides[side].take(pa.array(row_positions.get(side, nothing)))
        for side in (Side.REMOVED, Side.ADDED)
    )
    return deleted, inserted


# Writers that rewrite a file keep the order of its rows: most rows of the two are equal at the
# same positions, or at positions shifted by deleted or inserted rows. They are compared in place,
# several times faster than by their hashes. Rows that do not cancel here are passed on, to be
# compared with all others. Any equal pair may cancel, so trying is harmless; it stops early if the
# files have no common order.

BLOCK_ROWS = 1 << 16
BLOCK_BYTES = 16 * 1024 * 1024
"""Rows compared at a time: as many as both sides have in so many bytes, halved until they fit. That
depends on the rows alone, not on the memory or on how the files are cut into batches, so that the
same rows cancel in every run."""
_SEGMENT_ROWS = 64
"""If less than half of a segment is equal, rows are taken to be shifted from there on."""
_WINDOW_ROWS = 4096
"""Number of rows of each side among which a shift is searched for."""
_MIN_VOTES = 16
"""Minimum number of rows that must agree on a shift; all of them if there are fewer."""
_MAX_FAILURES = 3
_SHIFTS_AT_FIRST, _ROWS_PER_SHIFT = 16, 4096
"""Maximum number of shifts: a base, plus one per so many rows. Beyond that hashing is faster."""


@dataclass(frozen=True, slots=True)
class Unaligned:
    """Rows that did not cancel.

    Attributes:
        positions: Of each row in its file, or that of the first if they are consecutive.
    """

    side: Side
    positions: Rows | int
    rows: pa.RecordBatch


class AlignedRows:
    """Compares the rows of one removed and one added file. Not thread-safe.

    Push the rows of both sides in file order, in turns: rows of the side that is ahead wait in
    memory. End each side. Both calls yield the rows that do not cancel, and must be exhausted.
    """

    def __init__(self, comparer: RowComparer, hasher: RowHasher) -> None:
        self._comparer = comparer
        self._hasher = hasher
        self._removed = _WaitingRows(Side.REMOVED)
        self._added = _WaitingRows(Side.ADDED)
        self._sides = (self._removed, self._added)
        self._rows = 0
        self._shifts = 0
        self._failures = 0

    @property
    def lagging_side(self) -> Side:
        """The side with fewer waiting rows; push that one next, unless it has ended."""
        return Side.REMOVED if self._removed.count <= self._added.count else Side.ADDED

    def push(self, side: Side, positions: Rows | int, rows: pa.RecordBatch) -> Iterator[Unaligned]:
        """Add rows; yield those known not to cancel."""
        self._sides[side].append(positions, rows)
        yield from self._compare()

    def end(self, side: Side) -> Iterator[Unaligned]:
        """Note that a side has no further rows; yield those known not to cancel."""
        self._sides[side].is_ended = True
        yield from self._compare()

    def _compare(self) -> Iterator[Unaligned]:
        while True:
            if self._failures >= _MAX_FAILURES or any(s.is_exhausted for s in self._sides):
                yield from self._removed.skip(self._removed.count)
                yield from self._added.skip(self._added.count)
                return
            sizes = [side.block_rows() for side in self._sides]
            most = min(size for size in sizes if size is not None) if any(sizes) else 0
            is_known = most and all(
                size is not None or side.count >= most
                for size, side in zip(sizes, self._sides, strict=True)
            )
            if not is_known:
                return
            yield from self._compare_block(most)

    def _compare_block(self, most: int) -> Iterator[Unaligned]:
        count = min(self._removed.count, self._added.count, most)
        removed, added = (side.peek(count) for side in self._sides)
        is_equal = self._comparer.equal(removed, added)
        until = _first_shift(is_equal)
        kept = count if until is None else until
        different = np.flatnonzero(~is_equal[:kept])
        for side in self._sides:
            yield from side.drop(kept, different)
        self._rows += kept
        if until is not None:
            yield from self._realign(min(_WINDOW_ROWS, most))

    def _realign(self, window: int) -> Iterator[Unaligned]:
        """Yield rows so that the following ones are equal again, or count a failure."""
        self._shifts += 1
        if self._shifts > _SHIFTS_AT_FIRST + self._rows // _ROWS_PER_SHIFT:
            self._failures = _MAX_FAILURES
            return
        counts = self._rows_to_skip(window)
        self._failures = 0 if counts else self._failures + 1
        for side, count in zip(self._sides, counts or (window, window), strict=True):
            yield from side.skip(min(side.count, count))

    def _rows_to_skip(self, window: int) -> tuple[int, int] | None:
        """Return the number of rows of each side after which the sides are aligned again."""
        hashes = [
            self._hasher.hash(side.peek(min(side.count, window))).first for side in self._sides
        ]
        # Rows that occur once on both sides show the shift.
        distinct = [np.unique(each, return_index=True, return_counts=True) for each in hashes]
        once = [(values[counts == 1], at[counts == 1]) for values, at, counts in distinct]
        _, left, right = np.intersect1d(
            once[0][0], once[1][0], assume_unique=True, return_indices=True
        )
        removed, added = once[0][1][left], once[1][1][right]
        _, shift, votes = np.unique(added - removed, return_inverse=True, return_counts=True)
        needed = min(_MIN_VOTES, *(len(each) for each in hashes))
        agreed = np.flatnonzero(votes[shift] >= needed)
        if not len(agreed):
            return None
        # Between two equally near ones the choice does not depend on the seed.
        distance = (removed + added) * _WINDOW_ROWS + removed
        nearest = agreed[np.argmin(distance[agreed])]
        return int(removed[nearest]), int(added[nearest])


def _first_shift(is_equal: Bools) -> int | None:
    """Return the first row from which rows are shifted rather than changed; None: there is none."""
    if is_equal.all():
        return None
    whole = len(is_equal) // _SEGMENT_ROWS * _SEGMENT_ROWS
    starts = np.arange(0, max(whole, 1), _SEGMENT_ROWS)
    equal = np.add.reduceat(is_equal.astype(np.int64), starts)
    bad = np.flatnonzero(2 * equal < np.diff(starts, append=len(is_equal)))
    if not len(bad):
        return None
    first = max(int(starts[bad[0]]) - _SEGMENT_ROWS, 0)
    return first + int(np.argmin(is_equal[first:]))


class _WaitingRows:
    """The rows of one side that wait to be compared."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._batches: deque[tuple[Rows | int, pa.RecordBatch]] = deque()
        self._size_bytes = 0
        self.count = 0
        self.is_ended = False

    @property
    def is_exhausted(self) -> bool:
        return self.is_ended and not self.count

    def append(self, positions: Rows | int, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._batches.append((positions, rows))
            self.count += rows.num_rows
            self._size_bytes += rows.nbytes

    def block_rows(self) -> int | None:
        """Return how many rows may be compared at a time; None until enough rows wait."""
        if self._size_bytes <= BLOCK_BYTES:
            return BLOCK_ROWS if self.is_ended or self.count >= BLOCK_ROWS else None
        most = BLOCK_ROWS
        while most > 1 and self._measure_first(most) > BLOCK_BYTES:
            most //= 2
        return most if most <= self.count or self.is_ended else None

    def _measure_first(self, count: int) -> int:
        """Return the size of the first rows."""
        size = 0
        for _, rows in self._batches:
            part = rows if rows.num_rows <= count else rows.slice(0, count)
            size += part.nbytes
            count -= part.num_rows
            if not count or size > BLOCK_BYTES:
                break
        return size

    def peek(self, count: int) -> pa.RecordBatch:
        """Return the first rows, at most `self.count`."""
        parts = []
        for _, rows in self._batches:
            parts.append(rows.slice(0, count))
            count -= parts[-1].num_rows
            if not count:
                break
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def drop(self, count: int, different: Rows) -> Iterator[Unaligned]:
        """Drop the first rows; yield those at the positions `different`, which ascend."""
        start = 0
        while start < count:
            positions, rows = self._take(count - start)
            end = start + rows.num_rows
            first, last = np.searchsorted(different, (start, end))
            row_positions = different[first:last] - start
            if len(row_positions) == rows.num_rows:
                yield Unaligned(self._side, positions, rows)
            elif len(row_positions):
                at = (
                    positions + row_positions
                    if isinstance(positions, int)
                    else positions[row_positions]
                )
                yield Unaligned(self._side, at, rows.take(pa.array(row_positions)))
            start = end

    def skip(self, count: int) -> Iterator[Unaligned]:
        """Yield the first rows."""
        while count:
            positions, rows = self._take(count)
            count -= rows.num_rows
            yield Unaligned(self._side, positions, rows)

    def _take(self, count: int) -> tuple[Rows | int, pa.RecordBatch]:
        """Remove and return rows of the first batch, at most `count`."""
        positions, rows = self._batches.popleft()
        self._size_bytes -= rows.nbytes
        if rows.num_rows > count:
            rest = positions + count if isinstance(positions, int) else positions[count:]
            self._batches.appendleft((rest, rows.slice(count)))
            self._size_bytes += self._batches[0][1].nbytes
            positions = positions if isinstance(positions, int) else positions[:count]
            rows = rows.slice(0, count)
        self.count -= rows.num_rows
        return positions, rows
