"""Formats types as text, human-readable.

Protocol: PROTOCOL.md#schema-serialization-format
"""

from __future__ import annotations

from tailerd.formats.delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructType,
)


def type_text(data_type: DataType) -> str:
    """Return a type in the form of Spark's `simpleString`: `array<struct<a:long>>`."""
    match data_type:
        case PrimitiveType(name):
            return name
        case ArrayType(element=element):
            return f"array<{type_text(element)}>"
        case MapType(key=key, value=value):
            return f"map<{type_text(key)},{type_text(value)}>"
        case StructType(fields):
            inner = ",".join(f"{each.name}:{type_text(each.type)}" for each in fields)
            return f"struct<{inner}>"


def column_texts(schema: StructType) -> tuple[tuple[str, str], ...]:
    """Return name and type of each column, in order, with `not null` if applicable."""
    return tuple(
        (each.name, type_text(each.type) + ("" if each.nullable else " not null"))
        for each in schema.fields
    )
