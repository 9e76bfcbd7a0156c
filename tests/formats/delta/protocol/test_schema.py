from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.protocol.schema import (
    VARIANT,
    PrimitiveType,
    StructType,
    arrow_schema,
    parse_schema,
)


def format_text(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": True, "metadata": {}}
                for name, kind in fields
            ],
        }
    )


def arrow_of(kind: Any) -> pa.DataType:
    return arrow_schema(parse_schema(format_text(("c", kind)))).field("c").type


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ("string", pa.string()),
        ("long", pa.int64()),
        ("integer", pa.int32()),
        ("short", pa.int16()),
        ("byte", pa.int8()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("decimal( 5 , 0 )", pa.decimal128(5, 0)),
        ("STRING", pa.string()),
        ("variant", VARIANT),
    ],
)
def test_every_primitive_type_has_its_arrow_type(kind: str, arrow: pa.DataType) -> None:
    assert arrow_of(kind) == arrow


def test_nested_types_keep_their_shape_and_what_may_be_null() -> None:
    inner = json.loads(format_text(("x", "integer"), ("y", "variant")))
    array = {"type": "array", "elementType": inner, "containsNull": False}
    mapping = {"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": True}
    kind = arrow_of(mapping)
    assert pa.types.is_map(kind)
    assert (kind.key_type, kind.item_field.nullable) == (pa.string(), True)
    assert not kind.item_type.value_field.nullable
    struct = kind.item_type.value_type
    assert [item.name for item in struct] == ["x", "y"]
    assert struct.field("y").metadata == VARIANT_FIELD


def test_void_columns_have_a_type_of_their_own_wherever_they_are() -> None:
    array = {"type": "array", "elementType": "void", "containsNull": True}
    inner = json.loads(format_text(("x", "void"), ("y", "long"), ("z", "null"), ("l", array)))
    schema = parse_schema(format_text(("a", "void"), ("b", "string"), ("c", inner)))
    assert arrow_schema(schema).types[:2] == [pa.null(), pa.string()]
    members = {item.name: item.type for item in arrow_schema(schema).field("c").type}
    nothings = pa.list_(pa.field("element", pa.null()))
    assert members == {"x": pa.null(), "y": pa.int64(), "z": pa.null(), "l": nothings}


@pytest.mark.parametrize(
    "kind",
    [
        "interval day to second",
        "geometry",
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(5,-1)",
        "uuid",
    ],
)
def test_a_type_this_release_does_not_read_is_named_with_its_column(kind: str) -> None:
    struct = json.loads(format_text(("inner", kind)))
    with pytest.raises(UnsupportedFeatureError) as raised:
        arrow_of(struct)
    assert "c.inner" in str(raised.value)
    assert repr(kind) in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "no json",
        "null",
        "5",
        "[]",
        "{}",
        '{"type":"struct"}',
        '{"type":"struct","fields":null}',
        '{"type":"struct","fields":[5]}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a","type":null}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":5}}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"array"}}]}',
        '{"type":"array","elementType":"long","containsNull":true}',
        '"long"',
    ],
    ids=range(16),
)
def test_a_text_that_is_no_schema_is_a_clear_error(text: str) -> None:
    with pytest.raises(CorruptLogError, match="schemaString"):
        parse_schema(text)


def test_no_text_is_a_schema_without_columns_yet() -> None:
    assert parse_schema("") == StructType(())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"type":' * 5_000])
def test_a_text_nested_without_end_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="nested deeper"):
        parse_schema(text)


@given(st.text(min_size=1, max_size=30))
def test_no_text_is_another_error(text: str) -> None:
    with pytest.raises(CorruptLogError):
        parse_schema(text)


def mapped_field(**metadata: Any) -> StructType:
    item = {"name": "a", "type": "string", "nullable": True, "metadata": metadata}
    return parse_schema(json.dumps({"type": "struct", "fields": [item]}))


def test_mapped_columns_tell_their_physical_name_and_id() -> None:
    item = mapped_field(
        **{"delta.columnMapping.id": 4, "delta.columnMapping.physicalName": "col-1"}
    ).find_field("a")
    assert item is not None
    assert item.column_id == 4
    assert [item.physical_name(mode) for mode in ("none", "name", "id")] == ["a", "col-1", "col-1"]


def test_an_unmapped_column_is_called_as_it_is() -> None:
    item = mapped_field().find_field("a")
    assert item is not None
    assert (item.physical_name("name"), item.column_id, item.char_length) == ("a", None, None)
    assert item.type == PrimitiveType("string")
    assert mapped_field().find_field("b") is None


@pytest.mark.parametrize(("kind", "length"), [("char(5)", 5), ("varchar(5)", None), ("x", None)])
def test_only_char_columns_have_a_length(kind: str, length: int | None) -> None:
    item = mapped_field(__CHAR_VARCHAR_TYPE_STRING=kind).find_field("a")
    assert item is not None
    assert item.char_length == length


def test_ids_and_comments_of_columns_are_said_at_every_depth() -> None:
    inner = {"name": "x", "type": "long", "metadata": {"delta.columnMapping.id": 3}}
    items = {"type": "array", "elementType": "string", "containsNull": True}
    fields = [
        {
            "name": "s",
            "type": {"type": "struct", "fields": [inner]},
            "metadata": {"delta.columnMapping.id": 1, "comment": "Größe"},
        },
        {"name": "v", "type": "variant", "metadata": {"delta.columnMapping.id": 2}},
        {"name": "plain", "type": items, "metadata": {"comment": 5}},
    ]
    schema = arrow_schema(parse_schema(json.dumps({"type": "struct", "fields": fields})))
    s, v, plain = schema
    assert s.metadata == {b"PARQUET:field_id": b"1", b"comment": "Größe".encode()}
    assert s.type.field(0).metadata == {b"PARQUET:field_id": b"3"}
    assert v.metadata == {b"tailerd.type": b"variant", b"PARQUET:field_id": b"2"}
    assert plain.metadata is None
