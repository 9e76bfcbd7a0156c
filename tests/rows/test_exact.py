"""Rows of every type, removed and added: what is left, against the naive difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.rows.difference import Side
from tailerd.rows.exact import Inputs, PositionedRows, difference_of_batches, exact_difference
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
            yield at, table.batch([rows[place] for place in at])
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
        rows[each.side] += [sides[each.side][each.input][place] for place in at]
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
    deleted, inserted = difference_of_batches(*batches, seed=seed)
    before, after = model_of(batches[0]), model_of(batches[1])
    assert model_of(deleted.to_batches()) == before - after
    assert model_of(inserted.to_batches()) == after - before


def test_one_row_of_a_thousand() -> None:
    ids = pa.array(range(1000))
    names = [f"name {number}" for number in range(1000)]
    one = pa.record_batch([ids, pa.array(names)], names=["id", "name"])
    names[417] = "another"
    other = pa.record_batch([ids, pa.array(names)], names=["id", "name"])
    deleted, inserted = difference_of_batches([one], [other], seed=1)
    assert deleted.to_pylist() == [{"id": 417, "name": "name 417"}]
    assert inserted.to_pylist() == [{"id": 417, "name": "another"}]
