"""Rows compared position by position are equal exactly where their hashes are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.errors import BugError
from tailerd.rows.equality import RowComparer
from tests.rows.random_tables import RandomTable, tables


@settings(max_examples=400)
@given(st.data(), tables(), st.integers(0, 3))
def test_rows_at_the_same_positions_are_compared_as_the_model_does(
    data: st.DataObject, table: RandomTable, padding: int
) -> None:
    pairs = data.draw(st.lists(st.tuples(table.rows, table.rows), min_size=1, max_size=8))
    left, right = [one for one, _ in pairs], [other for _, other in pairs]
    comparer = RowComparer(table.schema, 7)
    found = comparer.equal(table.batch(left, padding=padding), table.batch(right))
    models = zip(table.model(left), table.model(right), strict=True)
    assert found.tolist() == [one == other for one, other in models]
    assert comparer.equal(table.batch(left, padding=padding), table.batch(left)).all()


def test_rows_of_other_shapes_cannot_be_compared() -> None:
    batch = pa.record_batch([pa.array([1, 2])], names=["a"])
    with pytest.raises(BugError):
        RowComparer(batch.schema, 1).equal(batch, batch.slice(1))


@pytest.mark.parametrize("other", [pa.array(["a", None], pa.large_string()), pa.array(["a", None])])
def test_columns_stored_in_another_way_are_compared_too(other: pa.Array) -> None:
    one, two = (
        pa.record_batch([array], names=["a"]) for array in (pa.array(["a", None]).slice(0), other)
    )
    assert RowComparer(one.schema, 1).equal(one, two).all()
