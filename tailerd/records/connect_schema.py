"""Kafka Connect schemas of keys and envelopes, as its JSON converter writes them.

They describe the JSON that is sent, so that a converter with `schemas.enable` can read it: a
decimal sent as a string has the type `string`. Semantic types are Debezium's, if it has one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch, value_schema
from tailerd.errors import UnsupportedFeatureError
from tailerd.records.base import FormatOptions
from tailerd.records.json_columns import column_texts, is_any_list, is_variant

Node: TypeAlias = dict[str, object]

_INTEGERS = {8: "int8", 16: "int16", 32: "int32", 64: "int64"}
_JSON_TEXT = {b"tailerd.type": b"json"}
_JSON_NAME = "io.debezium.data.Json"
_TIMESTAMP_NAME = "io.debezium.time.ZonedTimestamp"
_TIMES = ("ts_ms", "ts_us", "ts_ns")


def envelope_schema(options: FormatOptions, schema: pa.Schema) -> str:
    """Return the schema of an envelope around rows of `schema`.

    Raises:
        UnsupportedFeatureError: A column has no Connect type.
    """
    return _envelope_schema(
        _prefix(options), options.decimals, bool(options.table_id), value_schema(schema)
    )


def key_schema(options: FormatOptions, fields: Sequence[pa.Field]) -> str:
    """Return the schema of a key.

    Raises:
        UnsupportedFeatureError: A column has no Connect type.
    """
    name = f"{_prefix(options)}.Key"
    return _text(_struct(fields, options.decimals, is_optional=False) | {"name": name})


def with_json_variants(batch: ChangeBatch) -> ChangeBatch:
    """Return the batch with variants as JSON text, because Connect has no variant type.

    Raises:
        UnreadableDataFileError: A variant value is damaged.
    """
    rows = batch.rows
    if not any(is_variant(field) for field in rows.schema):
        return batch
    arrays, fields = [], []
    for array, field in zip(rows.columns, rows.schema, strict=True):
        if is_variant(field):
            array = column_texts(array, field, quote_decimals=False).array
            field = pa.field(field.name, pa.string(), field.nullable, _JSON_TEXT)
        arrays.append(array)
        fields.append(field)
    return replace(batch, rows=pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def _prefix(options: FormatOptions) -> str:
    parts = (options.name, options.db, options.schema, options.table)
    return ".".join(part for part in parts if part)


@lru_cache(maxsize=64)
def _envelope_schema(prefix: str, decimals: str, has_table_id: bool, schema: pa.Schema) -> str:
    value = _struct(list(schema), decimals) | {"name": f"{prefix}.Value"}
    members = [
        value | {"field": "before"},
        value | {"field": "after"},
        _source(has_table_id) | {"field": "source"},
        _simple("string", "op", is_optional=False),
        *(_simple("int64", name) for name in _TIMES),
    ]
    envelope = {"type": "struct", "fields": members, "optional": False}
    return _text(envelope | {"name": f"{prefix}.Envelope", "version": 1})


def _source(has_table_id: bool) -> Node:
    texts = ("version", "connector", "name")
    names = ("snapshot", "db", "schema", "table", *(["table_id"] if has_table_id else []))
    members = [
        *(_simple("string", name, is_optional=False) for name in texts),
        *(_simple("int64", name, is_optional=False) for name in _TIMES),
        *(_simple("string", name, is_optional=False) for name in names),
        _simple("int64", "commit_version", is_optional=False),
        _simple("string", "commit_timestamp", is_optional=False) | {"name": _TIMESTAMP_NAME},
        _simple("string", "change_source", is_optional=False),
        _simple("string", "sequence"),
    ]
    name = "io.tailerd.connector.Source"
    return {"type": "struct", "fields": members, "optional": False, "name": name}


def _simple(kind: str, field: str, *, is_optional: bool = True) -> Node:
    return {"type": kind, "optional": is_optional, "field": field}


def _struct(fields: Sequence[pa.Field], decimals: str, *, is_optional: bool = True) -> Node:
    members = [_node(field, decimals) | {"field": field.name} for field in fields]
    return {"type": "struct", "fields": members, "optional": is_optional}


def _node(field: pa.Field, decimals: str) -> Node:
    """Return the schema of one column or item."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_variant(field):
        raise UnsupportedFeatureError(
            f"{field.name!r} is a variant inside another type, which Connect cannot describe.",
            remedy="Set `schemas: false`.",
        )
    if pa.types.is_struct(kind):
        return _struct(list(kind), decimals, is_optional=field.nullable)
    if pa.types.is_map(kind):
        keys = {"type": "string", "optional": False}
        values = _node(kind.item_field, decimals)
        return {"type": "map", "keys": keys, "values": values, "optional": field.nullable}
    if is_any_list(kind):
        items = _node(kind.value_field, decimals)
        return {"type": "array", "items": items, "optional": field.nullable}
    node: Node = {"type": _scalar(field, kind, decimals), "optional": field.nullable}
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        node["name"] = _TIMESTAMP_NAME
    elif (field.metadata or {}) == _JSON_TEXT:
        node["name"] = _JSON_NAME
    return node


def _scalar(field: pa.Field, kind: pa.DataType, decimals: str) -> str:
    if pa.types.is_integer(kind):
        return _INTEGERS[kind.bit_width]
    if pa.types.is_floating(kind):
        return "double" if kind.bit_width == 64 else "float"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_decimal(kind):
        return "string" if decimals == "string" else "double"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind):
        return "string"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return "bytes"
    if pa.types.is_fixed_size_binary(kind):
        return "bytes"
    raise UnsupportedFeatureError(
        f"Column {field.name!r} has the type {kind}, which has no Connect type here, because it is"
        " not a type of Delta.",
        remedy="Set `schemas: false`.",
    )


def _text(node: Node) -> str:
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False)
