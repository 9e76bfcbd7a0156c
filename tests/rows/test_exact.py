"""Rows of every type, removed and added: what is left, against the naive difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.rows import exact, hashing
from tailerd.rows.difference import Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.exact import (
    AlignedRows,
    Inputs,
    PositionedRows,
    Unaligned,
    compare_batches,
    exact_difference,
)
from tailerd.rows.hash_kernels import Rows
from tailerd.rows.hashing import RowHasher
from tailerd.rows.positions import Positions
from tests.rows.random_tables import Model, RandomTable, Row, model_of, tables

AMPLE = 1 << 30


@st.composite
def rewrites(draw: st.DrawFn) -> tuple[RandomTable, list[list[Row]], list[list[Row]]]:
    """Draw files, and the files that they were rewritten to: mostly equal rows, in some order."""
    table = draw(tables())
    files = st.lists(st.lists(table.rows, max_size=10), max_size=3)
    removed = draw(files)
    rows = [row for file in removed for row in file]
    kept = [row for row in rows if draw(st.integers(0, 4))] + draw(st.lists(table.rows, max_size=3))
    if draw(st.booleans()):
        kept = draw(st.permutations(kept))
    cut = draw(st.integers(0, len(kept)))
    return table, removed, [kept[:cut], kept[cut:]]


def read_of(table: RandomTable, sides: dict[Side, list[list[Row]]], cut: int) -> Inputs:
    """Return inputs that are read in batches of `cut` rows, slices of longer ones."""

    def read(side: Side, number: int, positions: Positions | None) -> Iterator[PositionedRows]:
        rows = sides[side][number]
        if positions is not None:
            at = positions.to_numpy()
            yield at, table.batch([rows[position] for position in at])
            return
        for start in range(0, len(rows), cut):
            yield start, table.batch(rows[start : start + cut], padding=start)

    counts = [len(sides[side]) for side in Side]
    return Inputs(
        schema=table.schema,
        removed=range(counts[0]),
        added=range(counts[1]),
        aligned=[(number, number) for number in range(min(counts))],
        read=read,
    )


def models(table: RandomTable, rows: Sequence[Row]) -> Counter[Model]:
    return Counter(table.model(rows))


@settings(max_examples=400)
@given(rewrites(), st.integers(1, 12), st.sampled_from([300, AMPLE]), st.integers(0, 3))
def test_changes_are_minimal_and_lead_from_what_was_to_what_is(
    rewrite: tuple[RandomTable, list[list[Row]], list[list[Row]]],
    cut: int,
    max_bytes: int,
    seed: int,
) -> None:
    table, removed, added = rewrite
    sides = {Side.REMOVED: removed, Side.ADDED: added}
    left = exact_difference(read_of(table, sides, cut), seed=seed, max_bytes=max_bytes)
    rows: dict[Side, list[Row]] = {Side.REMOVED: [], Side.ADDED: []}
    for each in left:
        at = each.positions.to_numpy().tolist()
        assert at == sorted(set(at))
        rows[each.side] += [sides[each.side][each.input][position] for position in at]
    before = models(table, [row for file in removed for row in file])
    after = models(table, [row for file in added for row in file])
    assert models(table, rows[Side.REMOVED]) == before - after
    assert models(table, rows[Side.ADDED]) == after - before


@settings(max_examples=200)
@given(rewrites(), st.integers(1, 12), st.integers(1, 2**128 - 1))
def test_which_rows_are_left_depends_on_neither_seed_nor_memory_nor_batches(
    rewrite: tuple[RandomTable, list[list[Row]], list[list[Row]]], cut: int, seed: int
) -> None:
    table, removed, added = rewrite
    sides = {Side.REMOVED: removed, Side.ADDED: added}
    one = exact_difference(read_of(table, sides, cut), seed=seed, max_bytes=200)
    other = exact_difference(read_of(table, sides, 100), seed=0, max_bytes=AMPLE)
    assert [(e.side, e.input, e.positions.to_numpy().tolist()) for e in one] == [
        (e.side, e.input, e.positions.to_numpy().tolist()) for e in other
    ]


@settings(max_examples=200)
@given(rewrites(), st.integers(0, 2**64))
def test_two_lists_of_batches_give_the_rows_of_both_sides(
    rewrite: tuple[RandomTable, list[list[Row]], list[list[Row]]], seed: int
) -> None:
    table, removed, added = rewrite
    batches = [[table.batch(rows) for rows in files] for files in (removed, added)]
    deleted, inserted = compare_batches(*batches, seed=seed)
    before, after = model_of(batches[0]), model_of(batches[1])
    assert model_of(deleted.to_batches()) == before - after
    assert model_of(inserted.to_batches()) == after - before


def test_one_row_of_a_thousand() -> None:
    ids = pa.array(range(1000))
    names = [f"name {number}" for number in range(1000)]
    one = pa.record_batch([ids, pa.array(names)], names=["id", "name"])
    names[417] = "another"
    other = pa.record_batch([ids, pa.array(names)], names=["id", "name"])
    deleted, inserted = compare_batches([one], [other], seed=1)
    assert deleted.to_pylist() == [{"id": 417, "name": "name 417"}]
    assert inserted.to_pylist() == [{"id": 417, "name": "another"}]


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
    assert sum(compared) <= 4 * exact.BLOCK_ROWS


def test_a_side_without_rows_leaves_the_other() -> None:
    assert left(compare([], [1, 2])) == ([], [0, 1])
    assert left(compare([1, 2], [])) == ([0, 1], [])
    assert left(compare([], [])) == ([], [])


WIDE = 1024


def wide_batch(numbers: Sequence[int]) -> pa.RecordBatch:
    texts = [f"{number:08d}" * (WIDE // 8) for number in numbers]
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts)], schema=SCHEMA)


@pytest.mark.attack
def test_wide_rows_wait_within_bytes_and_are_left_the_same_however_they_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "BLOCK_BYTES", 64 * WIDE)
    removed = list(range(3000))
    added = [each for each in range(3100) if each % 700 and not 1000 < each < 1040]
    results = []
    for cut in (7, 64, 500):
        rows = AlignedRows(RowComparer(SCHEMA, 5), RowHasher(SCHEMA, 5))
        waiting = {Side.REMOVED: wide_batch(removed), Side.ADDED: wide_batch(added)}
        starts = dict.fromkeys(waiting, 0)
        found: list[Unaligned] = []
        most = 0
        while waiting:
            side = rows.lagging_side if rows.lagging_side in waiting else next(iter(waiting))
            part = waiting[side].slice(starts[side], cut)
            if part.num_rows:
                found += rows.push(side, starts[side], part)
                starts[side] += cut
                most = max(most, *(each.count for each in rows._sides))
            else:
                del waiting[side]
                found += rows.end(side)
        assert most <= 2 * (64 + cut)
        positions = left(found)
        numbers = [
            [
                number
                for each in found
                if each.side is side
                for number in each.rows["id"].to_pylist()
            ]
            for side in Side
        ]
        assert numbers[0] == [removed[at] for at in positions[0]]
        assert numbers[1] == [added[at] for at in positions[1]]
        assert set(removed) - set(numbers[0]) == set(added) - set(numbers[1])
        results.append(positions)
    assert results[0] == results[1] == results[2]


@pytest.mark.attack
def test_rows_of_more_bytes_than_offsets_can_count_are_compared() -> None:
    # 34 times 64 MiB of text, in one buffer.
    shared = pa.array(["x" * (40 * 1024)] * 1600)
    rows = AlignedRows(RowComparer(SCHEMA, 5), RowHasher(SCHEMA, 5))
    found: list[Unaligned] = []
    for number in range(34):
        ids = pa.array(np.arange(1600) + 1600 * number)
        found += rows.push(
            Side.REMOVED, 1600 * number, pa.record_batch([ids, shared], schema=SCHEMA)
        )
    assert rows._sides[Side.REMOVED].count == 34 * 1600
    found += rows.push(
        Side.ADDED, 0, pa.record_batch([pa.array(range(1600)), shared], schema=SCHEMA)
    )
    found += rows.end(Side.ADDED)
    found += rows.end(Side.REMOVED)
    assert sorted(left(found)[0]) == list(range(1600, 34 * 1600))
    assert left(found)[1] == []


@pytest.mark.attack
def test_hashing_long_texts_takes_few_bytes_more_and_gives_the_same() -> None:
    numbers = range(0, 40_000, 2)
    whole = wide_batch(numbers)
    assert whole.nbytes > 2 * hashing.HASHED_BYTES
    found = RowHasher(SCHEMA, 5).hash(whole)
    parts = [RowHasher(SCHEMA, 5).hash(whole.slice(at, 999)) for at in range(0, len(numbers), 999)]
    assert found.first.tolist() == np.concatenate([each.first for each in parts]).tolist()
    assert found.second.tolist() == np.concatenate([each.second for each in parts]).tolist()
