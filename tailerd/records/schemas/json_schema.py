"""Convert a record's shape to a JSON Schema (draft 7), as Confluent's JsonSchemaConverter does.

It describes the JSON of the JSON formats: decimals are strings or numbers, as configured; binary is
base64; a map is an object; the three floats without a JSON number are strings. A variant may be
anything. Objects allow no other properties, so that adding a column is compatible under the
registries' rule BACKWARD, and removing one is not.

Protocol: JSON Schema draft-07
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from tailerd.records.json import DecimalStyle
from tailerd.records.schemas.column_kind import Kind, choose_kind, stored_type, unsupported_error
from tailerd.records.schemas.record_shape import (
    RecordShape,
    WrittenSchema,
    read_comment,
    read_record_name,
)

Node: TypeAlias = dict[str, object]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"
_NULL: Node = {"type": "null"}
_SPECIAL_FLOATS: Node = {"enum": ["NaN", "Infinity", "-Infinity"]}
_BINARY: Node = {"type": "string", "contentEncoding": "base64", "connect.type": "bytes"}
_SIMPLE: dict[Kind, Node] = {
    Kind.FLOAT: {"type": "number", "connect.type": "float32"},
    Kind.DOUBLE: {"type": "number", "connect.type": "float64"},
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.STRING: {"type": "string"},
    Kind.BINARY: _BINARY,
    Kind.UUID: _BINARY,
    Kind.DATE: {"type": "string", "format": "date"},
}


def json_schema(shape: RecordShape, *, decimals: DecimalStyle = "string") -> WrittenSchema:
    """Return the schema of records of a shape.

    Args:
        shape: Their name and fields.
        decimals: As for `JsonEncoder`.

    Raises:
        UnsupportedFeatureError: A column has no JSON form.
    """
    node: Node = {"$schema": _DRAFT, **_object(shape.name, shape.fields, decimals)}
    if shape.name.endswith(".Envelope"):
        node["connect.version"] = 1
    text = json.dumps(node, separators=(",", ":"), ensure_ascii=False)
    return WrittenSchema(kind="JSON", name=shape.name, text=text)


def _object(name: str, fields: Sequence[pa.Field], decimals: DecimalStyle) -> Node:
    members = {
        field.name: {"connect.index": index, **_member(field, decimals)}
        for index, field in enumerate(fields)
    }
    # No other properties: only then is an added column backward compatible.
    node: Node = {"type": "object", "properties": members, "additionalProperties": False}
    if name:
        node["title"] = name
    if required := [field.name for field in fields if not field.nullable]:
        node["required"] = required
    return node


def _member(field: pa.Field, decimals: DecimalStyle) -> Node:
    node = _node(field, decimals)
    comment = read_comment(field)
    return {**node, "description": comment} if comment else node


def _node(field: pa.Field, decimals: DecimalStyle) -> Node:
    """Return the schema of a column or an item, null included."""
    kind = choose_kind(field)
    if kind is Kind.VARIANT:
        return {}
    if kind is Kind.NULL:
        return _NULL
    choices = [_type(field, kind, decimals)]
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        choices.append(_SPECIAL_FLOATS)
    if field.nullable:
        choices.insert(0, _NULL)
    return choices[0] if len(choices) == 1 else {"oneOf": choices}


def _type(field: pa.Field, kind: Kind, decimals: DecimalStyle) -> Node:
    stored = stored_type(field.type)
    match kind:
        case Kind.STRUCT:
            return _object(read_record_name(field), tuple(stored), decimals)
        case Kind.LIST:
            return {"type": "array", "items": _node(stored.value_field, decimals)}
        case Kind.MAP:
            values = _node(stored.item_field, decimals)
            return {"type": "object", "connect.type": "map", "additionalProperties": values}
        case Kind.DECIMAL:
            return _decimal(stored, decimals)
        case Kind.INTEGER:
            return {"type": "integer", "connect.type": f"int{stored.bit_width}"}
        case Kind.TIMESTAMP:
            zoned = {"format": "date-time"} if stored.tz is not None else {}
            return {"type": "string", **zoned}
    if (simple := _SIMPLE.get(kind)) is not None:
        return simple
    raise unsupported_error(field)


def _decimal(stored: pa.DataType, decimals: DecimalStyle) -> Node:
    if decimals == "string":
        return {"type": "string"}
    parameters = {
        "scale": str(stored.scale),
        "connect.decimal.precision": str(stored.precision),
    }
    return {
        "type": "number",
        "title": _DECIMAL_NAME,
        "connect.version": 1,
        "connect.type": "bytes",
        "connect.parameters": parameters,
    }
