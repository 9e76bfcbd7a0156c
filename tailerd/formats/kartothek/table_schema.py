"""The columns of a table: types from `_common_metadata`, and columns with values in paths.

Specification: "Table schema", "Data files of partitions".
"""

from __future__ import annotations

import functools
import io
from urllib.parse import unquote

import pyarrow as pa

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import CorruptLogError
from tailerd.formats.plain_schema import file_column, plain_type, refuse_change_columns
from tailerd.reading.file_scan import FieldScan
from tailerd.reading.parquet_open import open_parquet

COMMON_METADATA = "_common_metadata"

_AS_SURROGATES = "surrogateescape"


def read_schema(content: bytes, path: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> pa.Schema:
    """Return the schema of rows from a `_common_metadata` file.

    Raises:
        CorruptLogError: It is not a Parquet file.
        TableError: A column has the name of a change column.
    """
    try:
        stored = open_parquet(io.BytesIO(content), memory_bytes, path).file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise CorruptLogError(
            f"The schema {path} cannot be read: {error}.",
            remedy="It is incomplete or not a Parquet file: restore it, or let its writer write it"
            " again.",
        ) from error
    refuse_change_columns(stored.names)
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in stored])


@functools.lru_cache(maxsize=4096)
def path_pieces(folder: str) -> tuple[tuple[str, str], ...]:
    """Return the columns and values in the folders of a key, in order.

    Args:
        folder: The part between the table's name and the file's, not decoded.

    A folder without exactly one `=` is ignored: writers do not escape slashes in values, and
    Kartothek reads them in the same way. Bytes that are not UTF-8 become lone surrogates.
    """
    pieces = (piece.split("=") for piece in folder.split("/"))
    return tuple(
        (unquote(each[0], errors=_AS_SURROGATES), unquote(each[1], errors=_AS_SURROGATES))
        for each in pieces
        if len(each) == 2
    )


def printable(text: str) -> str:
    """Return a part of a path with escapes instead of bytes that are not UTF-8."""
    return text.encode(errors=_AS_SURROGATES).decode(errors="backslashreplace")


def split_folder(key: str) -> str:
    """Return the part of a key between the table's name and the file's; may be empty."""
    _, _, inside = key.split("/", 2)
    return inside.rpartition("/")[0]


def path_value(text: str, field: pa.Field, key: str) -> pa.Scalar:
    """Return the constant of a column in a path.

    Raises:
        CorruptLogError: It is not a value of the column's type.
    """
    try:
        if pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type):
            return pa.scalar(text.encode(errors=_AS_SURROGATES), field.type)
        if pa.types.is_date(field.type):
            # Its writer may have written it as a timestamp.
            moment = pa.scalar(text, pa.string()).cast(pa.timestamp("us"))
            return moment.cast(pa.date32()).cast(field.type)
        return pa.scalar(text, pa.string()).cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptLogError(
            f"The path of {key!r} says {text!r} of column {field.name}, which is not a valid"
            f" {field.type}: {error}.",
            remedy="The writer is broken: rewrite that partition.",
        ) from error


def field_scans(schema: pa.Schema, folder: str) -> tuple[FieldScan, ...]:
    """Return how to read each column of a file: from its path, or from the file itself.

    Raises:
        CorruptLogError: The path has an invalid value for a column.
    """
    reported = dict(path_pieces(folder))
    return tuple(
        FieldScan(target=field, constant=path_value(reported[field.name], field, folder))
        if field.name in reported
        else file_column(field)
        for field in schema
    )
