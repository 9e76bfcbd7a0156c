"""The exact difference of two sets of inputs: rows in place, then hashes, then variants by value.

Combines the stages for one group of inputs. The caller provides reading: it is called for the rows
of an input once per pass, and must return the same rows in the same order each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailerd.rows.aligned import AlignedRows, Unaligned
from tailerd.rows.difference import Leftover, RowDifference, Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.hash_kernels import Rows
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

        def read(side: Side, number: int, wanted: Positions | None) -> Iterable[PositionedRows]:
            return self.read(side, number, positions[side, number] if wanted is None else wanted)

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

    def hashed(
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
        yield from matcher.hashed(side, number, inputs.read(side, number, None))


def difference_of_batches(
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
    places = {each.side: each.positions.to_numpy() for each in left}
    nothing = np.empty(0, np.int64)
    deleted, inserted = (
        sides[side].take(pa.array(places.get(side, nothing))) for side in (Side.REMOVED, Side.ADDED)
    )
    return deleted, inserted
