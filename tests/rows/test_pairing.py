"""Deletes and inserts of one key or row id become updates, in the order they are delivered."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.rows.difference import Side, equal_runs
from tailerd.rows.hashing import RowHasher, RowHashes
from tailerd.rows.pairing import Pairs, ordered_changes, pair_by_key
from tests.rows.random_tables import RandomTable, tables

Hash = tuple[int, int]
HASHES = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 1 << 63, 2**64 - 1]), st.integers(0, 1)), max_size=14
)


def row_hashes(hashes: list[Hash]) -> RowHashes:
    first, second = ([each[half] for each in hashes] for half in (0, 1))
    return RowHashes(np.array(first, np.uint64), np.array(second, np.uint64))


def hashes_of_keys(table: RandomTable, rows: list[tuple[object, ...]]) -> RowHashes:
    return RowHasher(table.schema, 3).hash(table.batch(rows))


@settings(max_examples=300)
@given(st.data(), tables(max_columns=2))
def test_rows_pair_where_their_key_is_unique_on_both_sides(
    data: st.DataObject, table: RandomTable
) -> None:
    deleted, inserted = (data.draw(st.lists(table.rows, max_size=8)) for _ in range(2))
    one, other = table.model(deleted), table.model(inserted)
    counts = Counter(one), Counter(other)
    pairs = pair_by_key(hashes_of_keys(table, deleted), hashes_of_keys(table, inserted))
    expected = [
        (one.index(key), number)
        for number, key in enumerate(other)
        if counts[0][key] == counts[1][key] == 1
    ]
    assert list(zip(pairs.deleted.tolist(), pairs.inserted.tolist(), strict=True)) == expected
    both = {key for key in counts[0] if counts[1][key]}
    ambiguous = {key for key in both if (counts[0][key], counts[1][key]) != (1, 1)}
    assert pairs.ambiguous_deletes == sum(counts[0][key] for key in ambiguous)
    assert pairs.ambiguous_inserts == sum(counts[1][key] for key in ambiguous)


@given(HASHES)
def test_equal_hashes_stand_side_by_side_in_the_order_of_their_rows(hashes: list[Hash]) -> None:
    found = row_hashes(hashes)
    order, is_same = equal_runs(found.first, found.second)
    assert sorted(order.tolist()) == list(range(len(hashes)))
    in_order = [hashes[row] for row in order]
    runs = [each for each, same in zip(in_order, is_same.tolist(), strict=True) if not same]
    assert len(set(runs)) == len(runs)
    for position in np.flatnonzero(is_same):
        assert in_order[position] == in_order[position - 1]
        assert order[position] > order[position - 1]


@given(st.integers(0, 9), st.integers(0, 9), st.data())
def test_deletes_come_first_and_images_of_an_update_side_by_side(
    deleted: int, inserted: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, min(deleted, inserted)))
    one = data.draw(st.permutations(range(deleted)))[:count]
    other = sorted(data.draw(st.permutations(range(inserted)))[:count])
    pairs = Pairs(np.array(one, np.int64), np.array(other, np.int64))
    found = ordered_changes(deleted, inserted, pairs)
    after = dict(zip(other, one, strict=True))
    expected = [(Side.REMOVED, row, "delete") for row in range(deleted) if row not in one]
    for row in range(inserted):
        if row in after:
            expected.append((Side.REMOVED, after[row], "update_preimage"))
        kind = "update_postimage" if row in after else "insert"
        expected.append((Side.ADDED, row, kind))
    kinds = found.change_types.to_pylist()
    assert list(zip(found.sides.tolist(), found.rows.tolist(), kinds, strict=True)) == expected
    assert len(found) == len(expected)


def test_without_pairs_there_are_deletes_and_inserts() -> None:
    found = ordered_changes(1, 2)
    assert found.change_types.to_pylist() == ["delete", "insert", "insert"]
