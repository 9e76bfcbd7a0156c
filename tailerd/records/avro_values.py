"""Convert decoded Avro values to those of the JSON formats, to compare deliveries. Pure.

The inverse of `schemas.avro_schema`: names as in the table, dates and timestamps as text, decimals
as text of digits, maps with keys that are not strings as objects. Values are decoded with
`plain_schema`, without logical types.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from tailerd.records.decoded_values import (
    Value,
    as_it_is,
    decimal_text,
    double_value,
    float_value,
    key_text,
)
from tailerd.records.json_text import date_text, time_text, timestamp_text
from tailerd.records.schemas.avro_schema import COLUMN_NAME, VARIANT_TYPE

_ENTRIES = re.compile(r"__entry(?:_\d+)?\Z")


def plain_schema(node: Any) -> Any:
    """Return a schema without logical types: a decoder then returns plain numbers and bytes."""
    if isinstance(node, list):
        return [plain_schema(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    return {name: plain_schema(each) for name, each in node.items() if name != "logicalType"}


def json_value(node: Any) -> Value:
    """Return a function that converts decoded values of a schema to JSON types.

    Args:
        node: A schema that `avro_schema` wrote, decoded from JSON.
    """
    return _value(node, {})


def _value(node: Any, known: dict[str, Value]) -> Value:
    if isinstance(node, list):
        [inner] = [each for each in node if each != "null"]
        value = _value(inner, known)
        return lambda found: None if found is None else value(found)
    if isinstance(node, str):
        return known.get(node) or _PLAIN.get(node, as_it_is)
    match node["type"]:
        case "record":
            return _record(node, known)
        case "array":
            return _array(node["items"], known)
        case "map":
            item = _value(node["values"], known)
            return lambda found: {name: item(each) for name, each in found.items()}
    if VARIANT_TYPE.items() <= node.items():
        return lambda found: msgspec.Raw(found.encode())
    if node.get("logicalType") == "decimal":
        scale = int(node.get("scale", 0))
        return lambda found: decimal_text(found, scale)
    return _LOGICAL.get(node.get("logicalType", "")) or _value(node["type"], known)


def _record(node: Mapping[str, Any], known: dict[str, Value]) -> Value:
    names = {field["name"]: field.get(COLUMN_NAME, field["name"]) for field in node["fields"]}
    values: dict[str, Value] = {}

    def record(found: Any) -> Any:
        return {names[name]: values[name](each) for name, each in found.items()}

    full_name = f"{node['namespace']}.{node['name']}" if node.get("namespace") else node["name"]
    known[full_name] = known[node["name"]] = record
    for field in node["fields"]:
        values[field["name"]] = _value(field["type"], known)
    return record


def _array(items: Any, known: dict[str, Value]) -> Value:
    item = _value(items, known)
    if isinstance(items, Mapping) and _ENTRIES.search(str(items.get("name", ""))):
        return lambda found: {
            key_text(entry["key"]): entry["value"] for entry in (item(each) for each in found)
        }
    return lambda found: [item(each) for each in found]


_PLAIN: Mapping[str, Value] = {
    "bytes": lambda found: b64encode(found).decode(),
    "float": float_value,
    "double": double_value,
}
_LOGICAL: Mapping[str, Value] = {
    "date": date_text,
    "time-micros": time_text,
    "timestamp-micros": timestamp_text,
    "local-timestamp-micros": lambda found: timestamp_text(found, is_utc=False),
}
