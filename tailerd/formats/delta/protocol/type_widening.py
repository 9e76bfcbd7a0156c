"""Finds columns whose type was widened.

Protocol: PROTOCOL.md#type-widening
"""

from __future__ import annotations

from collections.abc import Iterator

from tailerd.formats.delta.protocol.schema import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)

TYPE_CHANGES = "delta.typeChanges"


def widened_floats(schema: StructType) -> frozenset[str]:
    """Return the top-level columns in which, at any depth, floats became doubles."""
    return frozenset(
        column.name
        for column in schema.fields
        if any(_was_float(field) for field in _fields(column))
    )


def _fields(field: StructField) -> Iterator[StructField]:
    """Yield a field and those inside it."""
    yield field
    for inner in _inner(field.type):
        yield from _fields(inner)


def _inner(kind: DataType) -> Iterator[StructField]:
    match kind:
        case StructType(fields):
            yield from fields
        case ArrayType(element, _):
            yield from _inner(element)
        case MapType(key, value, _):
            yield from _inner(key)
            yield from _inner(value)
        case _:
            pass


def _was_float(field: StructField) -> bool:
    # Changes of an element, key or value are recorded at the enclosing field, with a `fieldPath`.
    changes = field.metadata.get(TYPE_CHANGES)
    return isinstance(changes, list) and any(
        isinstance(change, dict) and change.get("fromType") == "float" for change in changes
    )
