"""Rows that cancel in place, and that all others are handed on with their positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.rows import aligned
from tailerd.rows.aligned import AlignedRows, Unaligned
from tailerd.rows.difference import Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.hash_kernels import Rows
from tailerd.rows.hashing import RowHasher

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})


def batch(numbers: Sequence[int] | Rows) -> pa.RecordBatch:
    values = pa.array(numbers, pa.int64())
    return pa.RecordBatch.from_arrays([values, values.cast(pa.string())], schema=SCHEMA)


def compare(
    removed: Sequence[int] | Rows, added: Sequence[int] | Rows, cut: int = 1000
) -> list[Unaligned]:
    rows = AlignedRows(RowComparer(SCHEMA, 5), RowHasher(SCHEMA, 5))
    waiting = {Side.REMOVED: batch(removed), Side.ADDED: batch(added)}
    starts = dict.fromkeys(waiting, 0)
    found: list[Unaligned] = []
    while waiting:
        side = rows.lagging_side if rows.lagging_side in waiting else next(iter(waiting))
        start = starts[side]
        part = waiting[side].slice(start, cut)
        if not part.num_rows:
            del waiting[side]
            found += rows.end(side)
            continue
        starts[side] += part.num_rows
        found += rows.push(side, start, part)
    return found


def left(found: list[Unaligned]) -> tuple[list[int], list[int]]:
    """Return the positions handed on, by side."""
    positions: tuple[list[int], list[int]] = ([], [])
    for each in found:
        start = each.positions
        at = np.arange(start, start + each.rows.num_rows) if isinstance(start, int) else start
        positions[each.side].extend(at.tolist())
    return positions


def check(removed: Sequence[int], added: Sequence[int], found: list[Unaligned]) -> None:
    """What is handed on is at its positions, and all else cancelled in pairs."""
    for each in found:
        numbers = (removed, added)[each.side]
        start = each.positions
        at = range(start, start + each.rows.num_rows) if isinstance(start, int) else start
        assert each.rows == batch([numbers[position] for position in at])
    kept = left(found)
    for positions in kept:
        assert positions == sorted(set(positions))
    cancelled = [
        Counter(numbers) - Counter(numbers[position] for position in positions)
        for numbers, positions in zip((removed, added), kept, strict=True)
    ]
    assert cancelled[0] == cancelled[1]


NUMBERS = st.lists(st.integers(0, 5), max_size=30)


@given(NUMBERS, NUMBERS, st.integers(1, 40))
def test_only_equal_rows_cancel(removed: list[int], added: list[int], cut: int) -> None:
    check(removed, added, compare(removed, added, cut))


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 1999), max_size=6),
    st.sets(st.integers(0, 1999), max_size=6),
    st.sets(st.integers(0, 1999), max_size=6),
    st.integers(100, 3000),
)
def test_a_file_with_some_rows_deleted_updated_and_inserted_leaves_only_those(
    deleted: set[int], updated: set[int], inserted: set[int], cut: int
) -> None:
    removed = list(range(2000))
    added: list[int] = []
    for number in removed:
        if number in inserted:
            added.append(-number - 10_000)
        if number not in deleted:
            added.append(-number - 1 if number in updated else number)
    found = compare(removed, added, cut)
    check(removed, added, found)
    # Near a shift a few more rows may be handed on.
    near = 200 * (len(deleted) + len(inserted))
    assert sum(map(len, left(found))) <= 2 * len(deleted | updated | inserted) + near


def test_rows_deleted_at_the_start_and_appended_at_the_end() -> None:
    removed, added = np.arange(200_000), np.arange(1000, 201_000)
    assert left(compare(removed, added)) == (
        list(range(1000)),
        list(range(199_000, 200_000)),
    )


def test_rows_in_place_cancel_wherever_they_are_updated() -> None:
    removed, added = np.arange(200_000), np.arange(200_000)
    added[::7] += 1_000_000
    changed = list(range(0, 200_000, 7))
    assert left(compare(removed, added)) == (changed, changed)


@pytest.mark.parametrize("cuts", [(1000, 65_536), (777, 300_000)])
def test_the_same_rows_cancel_however_the_files_are_cut(cuts: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    removed = random.integers(0, 50, 150_000)
    added = np.delete(removed, random.integers(0, 150_000, 9))
    one, other = (left(compare(removed, added, cut)) for cut in cuts)
    assert one == other


def test_rows_in_another_order_are_handed_on_without_much_ado(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    equal = RowComparer.equal

    def counting(self: RowComparer, one: pa.RecordBatch, other: pa.RecordBatch) -> object:
        compared.append(one.num_rows)
        return equal(self, one, other)

    monkeypatch.setattr(RowComparer, "equal", counting)
    removed = np.random.default_rng(3).permutation(500_000)
    found = compare(removed, np.arange(500_000))
    assert sum(map(len, left(found))) >= 999_990
    assert sum(compared) <= 4 * aligned.BLOCK_ROWS


def test_a_side_without_rows_leaves_the_other() -> None:
    assert left(compare([], [1, 2])) == ([], [0, 1])
    assert left(compare([1, 2], [])) == ([0, 1], [])
    assert left(compare([], [])) == ([], [])
