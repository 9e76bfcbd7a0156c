"""Rows of an older schema in a newer one: added columns, widened types, and what cannot be said."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import FIELD_ID, VARIANT_FIELD
from tailerd.rows.schema_cast import MatchColumns, schema_cast
from tests.rows.random_tables import VARIANT, RandomTable, tables

BY_NAME = MatchColumns.BY_NAME


def batch(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], names=["c"])


def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


@settings(max_examples=200)
@given(st.data(), tables(), st.integers(0, 3))
def test_rows_of_the_same_schema_stay_as_they_are(
    data: st.DataObject, table: RandomTable, padding: int
) -> None:
    rows = data.draw(st.lists(table.rows, max_size=6))
    cast = schema_cast(table.schema, table.schema, BY_NAME)
    assert cast is not None
    found = cast.apply(table.batch(rows, padding=padding))
    assert found is not None
    found.validate(full=True)
    assert str(found.to_pylist()) == str(table.batch(rows).to_pylist())  # NaN is not equal.


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (pa.int8(), pa.int64(), -1, -1),
        (pa.int32(), pa.float64(), 2**31 - 1, 2.0**31 - 1),
        (pa.float32(), pa.float64(), 1.5, 1.5),
        (pa.int32(), pa.decimal128(12, 2), -7, Decimal("-7.00")),
        (pa.decimal128(5, 2), pa.decimal128(10, 4), Decimal("1.50"), Decimal("1.5000")),
        (pa.date32(), pa.timestamp("us"), dt.date(2026, 1, 2), dt.datetime(2026, 1, 2)),
        (pa.null(), pa.string(), None, None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), [1, None], [1, None]),
        (
            pa.map_(pa.string(), pa.int8()),
            pa.map_(pa.string(), pa.int32()),
            [("a", 1)],
            [("a", 1)],
        ),
        (
            pa.struct({"a": pa.int8(), "gone": pa.string()}),
            pa.struct({"new": pa.string(), "a": pa.int16()}),
            {"a": 1, "gone": "x"},
            {"new": None, "a": 1},
        ),
    ],
    ids=str,
)
def test_a_widened_value_is_what_it_was(
    old: pa.DataType, new: pa.DataType, value: Any, expected: Any
) -> None:
    cast = schema_cast(pa.schema({"c": old}), pa.schema({"c": new}), BY_NAME)
    assert cast is not None
    found = cast.apply(batch([None, value, None, value], old).slice(1))
    assert found is not None
    found.validate(full=True)
    assert found.schema == pa.schema({"c": new})
    assert found["c"].to_pylist() == [expected, None, expected]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.decimal128(10, 0)),
        (pa.float64(), pa.float32()),
        (pa.decimal128(10, 2), pa.decimal128(10, 4)),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
        (pa.list_(pa.int64()), pa.int64()),
        (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int8()})),
    ],
    ids=str,
)
def test_a_type_that_changed_otherwise_cannot_be_compared(
    old: pa.DataType, new: pa.DataType
) -> None:
    assert schema_cast(pa.schema({"c": old}), pa.schema({"c": new}), BY_NAME) is None


def test_a_variant_is_no_struct() -> None:
    plain, marked = pa.field("c", VARIANT), pa.field("c", VARIANT, metadata=VARIANT_FIELD)
    assert schema_cast(pa.schema([plain]), pa.schema([marked]), BY_NAME) is None


def test_columns_are_found_by_id_whatever_their_names() -> None:
    old = pa.schema(
        [with_id("a", pa.int32(), 1), with_id("s", pa.struct([with_id("x", pa.int64(), 3)]), 2)]
    )
    new = pa.schema(
        [
            with_id("s2", pa.struct([with_id("a", pa.int64(), 4), with_id("y", pa.int64(), 3)]), 2),
            with_id("b", pa.int64(), 1),
            with_id("a", pa.string(), 5),
        ]
    )
    cast = schema_cast(old, new, MatchColumns.BY_FIELD_ID)
    assert cast is not None
    found = cast.apply(pa.RecordBatch.from_pylist([{"a": 1, "s": {"x": 7}}], schema=old))
    assert found is not None
    assert found.to_pylist() == [{"s2": {"a": None, "y": 7}, "b": 1, "a": None}]
    # By name, `a` would be an integer that became a text.
    assert schema_cast(old, new, BY_NAME) is None


def test_columns_without_ids_are_found_by_name() -> None:
    old, new = pa.schema({"a": pa.int32()}), pa.schema({"b": pa.string(), "a": pa.int64()})
    cast = schema_cast(old, new, MatchColumns.BY_FIELD_ID)
    assert cast is not None
    found = cast.apply(pa.record_batch([pa.array([1], pa.int32())], schema=old))
    assert found is not None
    assert found.to_pylist() == [{"b": None, "a": 1}]


def test_a_value_out_of_range_cannot_be_compared() -> None:
    old, new = pa.schema({"c": pa.date32()}), pa.schema({"c": pa.timestamp("us")})
    cast = schema_cast(old, new, BY_NAME)
    assert cast is not None
    assert cast.apply(pa.record_batch([pa.array([2**31 - 1], pa.date32())], schema=old)) is None


def test_dropped_columns_are_left_out() -> None:
    old = pa.schema({"a": pa.int64(), "b": pa.string()})
    cast = schema_cast(old, pa.schema({"b": pa.string()}), BY_NAME)
    assert cast is not None
    found = cast.apply(pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}], schema=old))
    assert found is not None
    assert found.to_pylist() == [{"b": "x"}]
