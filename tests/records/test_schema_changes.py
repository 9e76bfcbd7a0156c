"""What readers are told about changes of a schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import COLUMN_ID, COMMENT, FIELD_ID, VARIANT_FIELD
from tailerd.changefeed.offset import Version
from tailerd.records.schema_changes import SchemaChange, SchemaTracker, compare_schemas

VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])


def field(name: str, kind: pa.DataType, number: int | None = None, key: bytes = FIELD_ID) -> Any:
    return pa.field(name, kind, metadata=None if number is None else {key: str(number).encode()})


def said(old: list[pa.Field], new: list[pa.Field]) -> list[str]:
    return [str(change) for change in compare_schemas(pa.schema(old), pa.schema(new))]


def test_additions_and_drops_name_their_types() -> None:
    old = [field("a", pa.int32()), field("b", pa.string())]
    new = [field("a", pa.int32()), field("c", pa.struct([field("x", pa.int64())]))]
    assert said(old, new) == ["dropped b (string)", "added c (struct<x: int64>)"]


@pytest.mark.parametrize("key", [FIELD_ID, COLUMN_ID])
def test_a_rename_is_seen_by_the_id(key: bytes) -> None:
    assert said([field("a", pa.int32(), 1, key)], [field("b", pa.int32(), 1, key)]) == [
        "renamed a to b"
    ]


def test_two_columns_may_exchange_their_names() -> None:
    old = [field("a", pa.int32(), 1), field("b", pa.int32(), 2)]
    new = [field("b", pa.int32(), 1), field("a", pa.int32(), 2)]
    assert said(old, new) == ["renamed a to b", "renamed b to a"]


def test_without_ids_a_rename_is_a_drop_and_an_addition() -> None:
    assert said([field("a", pa.int32())], [field("b", pa.int32())]) == [
        "dropped a (int32)",
        "added b (int32)",
    ]


def test_columns_are_the_same_when_ids_are_introduced() -> None:
    assert said([field("a", pa.int32())], [field("a", pa.int32(), 1)]) == []


def test_another_id_of_the_same_name_and_type_is_another_column() -> None:
    old, new = [field("a", pa.int32(), 1)], [field("a", pa.int32(), 2)]
    assert said(old, new) == ["dropped a (int32)", "added a (int32)"]


def test_a_cast_may_give_a_column_another_id() -> None:
    old, new = [field("a", pa.int32(), 1)], [field("a", pa.int64(), 2)]
    assert said(old, new) == ["widened a from int32 to int64"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (pa.int32(), pa.int64(), "widened a from int32 to int64"),
        (pa.float32(), pa.float64(), "widened a from float to double"),
        (pa.int64(), pa.int32(), "retyped a from int64 to int32"),
        (pa.int32(), pa.uint32(), "retyped a from int32 to uint32"),
        (pa.int32(), pa.string(), "retyped a from int32 to string"),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), "widened a.element from int32 to int64"),
    ],
)
def test_types_are_widened_or_otherwise_changed(
    old: pa.DataType, new: pa.DataType, text: str
) -> None:
    assert said([field("a", old)], [field("a", new)]) == [text]


def test_fields_are_named_by_their_path() -> None:
    old = pa.struct([field("x", pa.int32(), 5), field("y.z", pa.int32(), 6)])
    new = pa.struct([field("w", pa.int32(), 5)])
    assert said([field("home", old, 1)], [field("house", new, 1)]) == [
        "renamed home to house",
        "dropped house.`y.z` (int32)",
        "renamed house.x to house.w",
    ]


def test_order_comments_and_nulls_are_changes() -> None:
    old = [field("a", pa.int32()), field("b", pa.int32())]
    new = [pa.field("b", pa.int32(), False), pa.field("a", pa.int32(), metadata={COMMENT: b"id"})]
    assert said(old, new) == [
        "b is never null",
        "changed the comment of a",
        "reordered columns",
    ]


def test_a_variant_is_one_type() -> None:
    new = pa.field("v", VARIANT, metadata=VARIANT_FIELD)
    assert said([field("v", pa.string())], [new]) == ["retyped v from string to variant"]


def test_the_plain_form_has_the_changes_and_all_columns() -> None:
    old = pa.schema([field("a", pa.int32()), field("gone", pa.date32())])
    new = pa.schema([field("a", pa.int64()), pa.field("b", pa.string(), False, {COMMENT: b"B"})])
    change = SchemaTracker(old).compare(new, Version(7), 1_700_000_000_000_000)
    assert change is not None
    assert change.to_json() == {
        "_event": "schema",
        "_commit_version": 7,
        "_commit_timestamp": "2023-11-14T22:13:20.000000Z",
        "changes": [
            {"change": "dropped", "column": "gone", "type": "date32[day]", "nullable": True},
            {"change": "widened", "column": "a", "from": "int32", "to": "int64"},
            {
                "change": "added",
                "column": "b",
                "type": "string",
                "nullable": False,
                "comment": "B",
                "position": 1,
            },
        ],
        "columns": [
            {"name": "a", "type": "int64", "nullable": True},
            {"name": "b", "type": "string", "nullable": False, "comment": "B"},
        ],
    }


def test_the_first_columns_are_told_without_changes() -> None:
    tracker, schema = SchemaTracker(), pa.schema([field("a", pa.int32())])
    first = tracker.compare(schema, Version(1), 0)
    assert isinstance(first, SchemaChange)
    assert first.changes == ()
    assert first.summary == "a (int32)"
    assert tracker.compare(pa.schema([field("a", pa.int32())]), Version(2), 0) is None
    assert tracker.compare(pa.schema([field("a", pa.int32(), 1)]), Version(3), 0) is None
