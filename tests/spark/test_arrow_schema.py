"""Rows of other versions under the declared schema, and variants there and back."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType, VariantType

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import SchemaChangedError
from tailerd.spark.arrow_schema import (
    conform,
    conform_array,
    declared_schema,
    spark_schema,
)
from tests.spark_rows import variants_marked

_VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])


def _batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_the_schema_is_the_tables_then_the_change_columns() -> None:
    table = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
            pa.field("seen", pa.timestamp("us", tz="UTC")),
            pa.field("local", pa.timestamp("us")),
            pa.field("doc", _VARIANT, metadata=VARIANT_FIELD),
        ]
    )
    assert spark_schema(table).simpleString() == (
        "struct<id:bigint,tags:array<string>,seen:timestamp,local:timestamp_ntz,doc:variant,"
        "_change_type:string,_commit_version:bigint,_commit_timestamp:timestamp>"
    )


def test_a_column_that_was_added_later_is_null_before() -> None:
    target = declared_schema(StructType().add("id", "long").add("note", "string"))
    rows = conform(_batch(id=pa.array([1, 2])), target, may_drop=False)
    assert rows.schema.equals(target)
    assert rows.to_pylist() == [{"id": 1, "note": None}, {"id": 2, "note": None}]


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([1, None], pa.int32()), pa.float64()),
        (pa.array([1.5, None], pa.float32()), pa.float64()),
        (pa.array([7, None], pa.int32()), pa.decimal128(12, 2)),
        (pa.array([decimal.Decimal("1.25"), None], pa.decimal128(5, 2)), pa.decimal128(9, 4)),
        (pa.array([dt.date(2024, 2, 29), None]), pa.timestamp("us")),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array([None, None]), pa.string()),
    ],
    ids=lambda value: str(value.type if isinstance(value, pa.Array) else value),
)
def test_a_narrower_type_is_widened(narrow: pa.Array, wide: pa.DataType) -> None:
    widened = conform_array(narrow, wide, "x")
    assert widened.type == wide
    assert widened.cast(pa.string()).drop_null().to_pylist() in (
        [["1"], ["1"], ["1.5"], ["7.00"], ["1.2500"], ["2024-02-29 00:00:00.000000"], ["a"], []]
    )
    assert widened[1].as_py() is None


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array([1.0]), pa.float32()),
        (pa.array([2**53 + 1], pa.int64()), pa.float64()),
        (pa.array([1], pa.int64()), pa.decimal128(10, 0)),
        (pa.array([decimal.Decimal("1.25")], pa.decimal128(5, 2)), pa.decimal128(9, 1)),
        (pa.array([0], pa.timestamp("us", tz="UTC")), pa.timestamp("us")),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
    ],
    ids=lambda value: str(value.type if isinstance(value, pa.Array) else value),
)
def test_a_type_that_may_lose_something_is_refused(wide: pa.Array, narrow: pa.DataType) -> None:
    with pytest.raises(SchemaChangedError, match="column amount"):
        conform_array(wide, narrow, "amount")


def test_a_column_nobody_declared_is_refused_unless_the_user_chose_columns() -> None:
    target = declared_schema(StructType().add("id", "long"))
    rows = _batch(id=pa.array([1]), dropped=pa.array(["x"]))
    with pytest.raises(SchemaChangedError, match="column dropped"):
        conform(rows, target, may_drop=False)
    assert conform(rows, target, may_drop=True).to_pylist() == [{"id": 1}]


def test_nested_types_are_fitted_in_slices_with_nulls() -> None:
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    inner_spark = StructType().add("a", "long").add("b", "string")
    column = pa.array(
        [None, [{"a": 1}], [], [{"a": 2}, None, {"a": 3}], None],
        pa.list_(pa.field("item", inner)),
    )
    target = declared_schema(StructType().add("x", ArrayType(inner_spark))).field("x").type
    fitted = conform_array(column.slice(1, 3), target, "x")
    fitted.validate(full=True)
    assert fitted.type.equals(target)
    assert fitted.to_pylist() == [
        [{"a": 1, "b": None}],
        [],
        [{"a": 2, "b": None}, None, {"a": 3, "b": None}],
    ]
    with pytest.raises(SchemaChangedError, match=r"field x\.element\.a"):
        conform_array(column, pa.list_(pa.struct([pa.field("z", pa.int32())])), "x")


def test_maps_are_fitted_in_slices_with_nulls() -> None:
    column = pa.array([[("k", 0)], None, [], [("k", 1), ("l", None)]], pa.map_("string", "int32"))
    target = (
        declared_schema(StructType().add("m", MapType(StringType(), LongType()))).field("m").type
    )
    fitted = conform_array(column.slice(1), target, "m")
    fitted.validate(full=True)
    assert fitted.type.equals(target)
    assert fitted.to_pylist() == [None, [], [("k", 1), ("l", None)]]


def test_a_variant_goes_to_spark_and_comes_back_as_it_was() -> None:
    table = pa.schema(
        [
            pa.field("doc", _VARIANT, metadata=VARIANT_FIELD),
            pa.field("docs", pa.list_(pa.field("item", _VARIANT, metadata=VARIANT_FIELD))),
        ]
    )
    one = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x05"}
    rows = pa.RecordBatch.from_pylist([{"doc": one, "docs": [one, None]}, {}], schema=table)
    declared = StructType(spark_schema(table).fields[:2])
    assert declared["doc"].dataType == VariantType()

    there = conform(rows, declared_schema(declared), may_drop=False)
    there.validate(full=True)
    back = variants_marked(there)

    assert back.to_pylist() == rows.to_pylist()
    assert back.schema.field("doc").metadata == VARIANT_FIELD
    assert back.schema.field("docs").type.value_field.metadata == VARIANT_FIELD
    assert back.schema.field("doc").type == _VARIANT


def test_a_batch_without_variants_comes_back_untouched() -> None:
    rows = _batch(
        id=pa.array([1]), tags=pa.array([["a"]]), m=pa.array([[]], pa.map_("string", "int8"))
    )
    assert variants_marked(rows) is rows
