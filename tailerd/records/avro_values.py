"""Avro values as the JSON formats write the same rows: for comparing what was delivered. Pure.

The inverse of `schemas.avro_schema`: names as the table has them, dates and timestamps as texts,
decimals as texts of digits, maps whose keys are no strings as objects. Values come from a decoder
that knows nothing of logical types, given `plain_schema`.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from tailerd.records.json_text import date_text, spaced_text, time_text, timestamp_text
from tailerd.records.schemas.avro_schema import COLUMN_NAME, VARIANT_TYPE

Value = Callable[[Any], Any]

_ENTRIES = re.compile(r"__entry(?:_\d+)?\Z")


def plain_schema(node: Any) -> Any:
    """Return a schema without logical types: a decoder gives the numbers and bytes as they are."""
    if isinstance(node, list):
        return [plain_schema(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    return {name: plain_schema(each) for name, each in node.items() if name != "logicalType"}


def json_value(node: Any) -> Value:
    """Return what brings decoded values of a schema to JSON's types.

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
        return known.get(node) or _PLAIN.get(node, _as_it_is)
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
        return lambda found: _decimal(found, scale)
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
            _key(entry["key"]): entry["value"] for entry in (item(each) for each in found)
        }
    return lambda found: [item(each) for each in found]


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    text = msgspec.json.encode(key).decode()
    return spaced_text(text) if isinstance(key, dict | list) else text


def _as_it_is(found: Any) -> Any:
    return found


def _double(found: float) -> float | str:
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"


def _float(found: float) -> float | str:
    # The shortest digits of the 32-bit number, not those of the double that it was decoded to.
    return float(str(np.float32(found))) if math.isfinite(found) else _double(found)


def _decimal(found: bytes, scale: int) -> str:
    unscaled = int.from_bytes(found, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return ("-" if unscaled < 0 else "") + whole + (f".{fraction}" if fraction else "")


_PLAIN: Mapping[str, Value] = {
    "bytes": lambda found: b64encode(found).decode(),
    "float": _float,
    "double": _double,
}
_LOGICAL: Mapping[str, Value] = {
    "date": date_text,
    "time-micros": time_text,
    "timestamp-micros": timestamp_text,
    "local-timestamp-micros": lambda found: timestamp_text(found, is_utc=False),
}
