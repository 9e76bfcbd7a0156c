"""The columns of a table: types of `_common_metadata`, and columns whose values stand in paths.

Specification: "Table schema", "Data files of partitions".
"""

from __future__ import annotations

import functools
import io
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.errors import CorruptLogError
from tailerd.formats.plain_schema import file_column, plain_type, refuse_change_columns
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
    refuse_change_columns(stored.names)
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in stored])


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
