"""Columns of formats with Arrow types: one layout for each type, and schemas as bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import pyarrow as pa

from tailerd.changefeed.change_batch import CHANGE_COLUMNS
from tailerd.errors import TableError, UsageError
from tailerd.reading.file_scan import FieldScan
from tailerd.remedies import LEAVE_OUT


def refuse_change_columns(names: Iterable[str]) -> None:
    """Make sure that no column has the name of a change column.

    Raises:
        TableError: One has.
    """
    for name in names:
        if name in CHANGE_COLUMNS:
            raise TableError(
                f"The table has a column {name}, and change rows carry one of that name too.",
                remedy=f"Rename it in the table, or {LEAVE_OUT}.",
            )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of rows for a stored type: one layout for each type, times in µs."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_date64(kind):
        return pa.date32()
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in fields])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def encode_schema(schema: pa.Schema) -> bytes:
    """Return the bytes that `decode_schema` reads; the same for the same schema."""
    return bytes(schema.serialize())


@functools.lru_cache(maxsize=256)
def decode_schema(encoded: bytes) -> pa.Schema:
    """Return the schema that `encode_schema` encoded."""
    return pa.ipc.read_schema(pa.py_buffer(encoded))


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the requested columns, in the table's order; missing ones are left out."""
    if columns is None:
        return schema
    requested = frozenset(columns)
    return pa.schema([field for field in schema if field.name in requested])


def require_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the requested columns, in the table's order.

    Raises:
        UsageError: One is missing.
    """
    if unknown := [name for name in columns or () if name not in schema.names]:
        raise UsageError(
            f"There is no column {unknown[0]!r}; the table has {', '.join(schema.names)}.",
            remedy="Check the spelling; names are case-sensitive.",
        )
    return select_columns(schema, columns)


def file_column(field: pa.Field) -> FieldScan:
    """Return how to read a column from a file."""
    kind = field.type
    children: tuple[FieldScan, ...] = ()
    if pa.types.is_struct(kind):
        children = tuple(file_column(kind.field(index)) for index in range(kind.num_fields))
    elif pa.types.is_list(kind):
        children = (file_column(kind.value_field),)
    elif pa.types.is_map(kind):
        children = (file_column(kind.key_field), file_column(kind.item_field))
    return FieldScan(target=field, name=field.name, children=children)
