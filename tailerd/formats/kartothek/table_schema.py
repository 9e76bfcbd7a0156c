"""The columns of a table: types of `_common_metadata`, and columns whose values stand in paths.

Specification: "Table schema", "Data files of partitions".
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import CHANGE_COLUMNS
from tailerd.errors import LEAVE_OUT, CorruptLogError, TableError, UsageError
from tailerd.reading.file_scan import FieldScan

COMMON_METADATA = "_common_metadata"


def read_schema(content: bytes, path: str) -> pa.Schema:
    """Return the schema that a `_common_metadata` file says, as rows are given.

    Raises:
        CorruptLogError: It is no Parquet file.
        TableError: A column is named like a change column.
    """
    try:
        stored = pq.read_schema(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise CorruptLogError(
            f"The schema {path} cannot be read: {error}.",
            remedy="It is torn or no Parquet file: restore it, or let its writer write it again.",
        ) from error
    for name in stored.names:
        if name in CHANGE_COLUMNS:
            raise TableError(
                f"The table has a column {name}, and change rows carry one of that name too.",
                remedy=f"Rename it in the table, or {LEAVE_OUT}.",
            )
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in stored])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that rows have of a stored one: one of several layouts, times in µs."""
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
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in fields])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def encode_schema(schema: pa.Schema) -> bytes:
    """Return the bytes that `decode_schema` reads; the same for the same schema."""
    return bytes(schema.serialize())


@functools.lru_cache(maxsize=256)
def decode_schema(encoded: bytes) -> pa.Schema:
    """Return what `encode_schema` was given."""
    return pa.ipc.read_schema(pa.py_buffer(encoded))


def chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns asked for, in the table's order; those that are not there are left out."""
    if columns is None:
        return schema
    wanted = frozenset(columns)
    return pa.schema([field for field in schema if field.name in wanted])


def checked(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns asked for, in the table's order.

    Raises:
        UsageError: One is not there.
    """
    if unknown := [name for name in columns or () if name not in schema.names]:
        raise UsageError(
            f"There is no column {unknown[0]!r}; the table has {', '.join(schema.names)}.",
            remedy="Check the spelling; names are case-sensitive.",
        )
    return chosen(schema, columns)


@functools.lru_cache(maxsize=4096)
def path_pieces(folder: str) -> tuple[tuple[str, str], ...]:
    """Return columns and values that the folders of a key say, in order.

    Args:
        folder: What lies between the table's name and the file's, not decoded.

    A piece without exactly one `=` says nothing: writers leave the slashes of values bare, and
    the library reads them so, too.
    """
    pieces = (piece.split("=") for piece in folder.split("/"))
    return tuple((unquote(each[0]), unquote(each[1])) for each in pieces if len(each) == 2)


def folder_of(key: str) -> str:
    """Return what lies between the table's name and the file's in a key; may be empty."""
    _, _, inside = key.split("/", 2)
    return inside.rpartition("/")[0]


def path_value(text: str, field: pa.Field, key: str) -> pa.Scalar:
    """Return the constant that a path says of a column.

    Raises:
        CorruptLogError: It is no value of the column's type.
    """
    try:
        if pa.types.is_date(field.type):
            # Its writer may have said it as a time.
            moment = pa.scalar(text, pa.string()).cast(pa.timestamp("us"))
            return moment.cast(pa.date32()).cast(field.type)
        return pa.scalar(text, pa.string()).cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptLogError(
            f"The path of {key!r} says {text!r} of column {field.name}, which is no {field.type}:"
            f" {error}.",
            remedy="The writer is broken: rewrite that partition.",
        ) from error


def field_scans(schema: pa.Schema, folder: str) -> tuple[FieldScan, ...]:
    """Return how each column of a file is found: in its path, or in the file itself.

    Raises:
        CorruptLogError: The path says what is no value of a column.
    """
    said = dict(path_pieces(folder))
    return tuple(
        FieldScan(target=field, constant=path_value(said[field.name], field, folder))
        if field.name in said
        else file_column(field)
        for field in schema
    )


def file_column(field: pa.Field) -> FieldScan:
    """Return how a column is found in a file."""
    kind = field.type
    children: tuple[FieldScan, ...] = ()
    if pa.types.is_struct(kind):
        children = tuple(file_column(kind.field(place)) for place in range(kind.num_fields))
    elif pa.types.is_list(kind):
        children = (file_column(kind.value_field),)
    elif pa.types.is_map(kind):
        children = (file_column(kind.key_field), file_column(kind.item_field))
    return FieldScan(target=field, name=field.name, children=children)
