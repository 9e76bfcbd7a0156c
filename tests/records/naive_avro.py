"""Avro row by row: what Avro's own writer and reader take and give, from Python values."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from tests.records.tables import shortest_bytes, to_micros, unscaled


def raw_schema(text: str) -> Any:
    """Return a schema without logical types, which the peer reads as the numbers they are."""
    return _without_logical(json.loads(text))


def _without_logical(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_logical(v) for k, v in node.items() if k != "logicalType"}
    return [_without_logical(item) for item in node] if isinstance(node, list) else node


def plain(value: Any, kind: pa.DataType, node: Any) -> Any:
    """Return the value that the schema `node` says, of the value of a type."""
    if value is None:
        assert node == "null" or node[0] == "null"
        return None
    if isinstance(node, list):
        node = node[1]
    match value:
        case Decimal():
            return shortest_bytes(unscaled(value))
        case dict():
            members = zip(node["fields"], kind, strict=True)
            return {m["name"]: plain(value[f.name], f.type, m["type"]) for m, f in members}
        case list() if pa.types.is_map(kind):
            return _map(value, kind, node)
        case list():
            return [plain(item, kind.value_type, node["items"]) for item in value]
        case int() if pa.types.is_timestamp(kind):
            return to_micros(value, kind)
        case int() if kind == pa.uint64():
            return shortest_bytes(value)
    return value


def _map(pairs: list[Any], kind: pa.DataType, node: Any) -> Any:
    if node["type"] == "map":
        return {key: plain(value, kind.item_type, node["values"]) for key, value in pairs}
    key_node, value_node = (member["type"] for member in node["items"]["fields"])
    return [
        {
            "key": plain(key, kind.key_type, key_node),
            "value": plain(value, kind.item_type, value_node),
        }
        for key, value in pairs
    ]


def written(schema: Any, value: Any) -> bytes:
    """Return the bytes of Avro's own writer."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def read(schema: Any, raw: bytes) -> Any:
    """Return what Avro's own reader finds; there must be nothing behind it."""
    stream = io.BytesIO(raw)
    value = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert not stream.read()
    return value
