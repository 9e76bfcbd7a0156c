"""Reads files that are not Parquet: Avro, of which some tables have small files of deleted rows.

Each record becomes a Python object. That is far slower than Parquet, so it is not for data files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa

from tailerd.changefeed.change_batch import FIELD_ID, join_columns
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import BugError, MissingExtraError, UnreadableDataFileError
from tailerd.reading.conform import FileFields, conform, missing_values
from tailerd.reading.file_scan import FileScan

AVRO = "avro"

_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL_TYPES: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-micros": pa.time64("us"),
    "timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
_ADJUSTED = "adjust-to-utc"


def read_rows(
    scan: FileScan, limit: BatchLimit, source: BinaryIO
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a file with the schema of the scan, each batch with its first position.

    Raises:
        UnreadableDataFileError: The file is damaged, or does not have the columns of the scan.
        MissingExtraError: fastavro is not installed.
    """
    if scan.file_format != AVRO:
        raise BugError(f"There is no reader of files of the format {scan.file_format}.")
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtraError(
            f"{scan.url} is an Avro file, and fastavro is not installed.",
            remedy="Install it: pip install 'tailerd[iceberg]'.",
        ) from error
    try:
        records = fastavro.reader(source)
        schema = _parse_schema(records.writer_schema)
        fields, rest = FileFields(schema), iter(records)
        at = 0
        while some := list(islice(rest, limit.max_rows)):
            rows = pa.RecordBatch.from_pylist(some, schema)
            yield _conform_rows(rows, scan, fields), at
            at += len(some)
    except (UnreadableDataFileError, MissingExtraError):
        raise
    except Exception as error:
        # fastavro raises whatever its decoding runs into.
        raise UnreadableDataFileError(f"it is not a readable Avro file ({error!r})") from error


def _conform_rows(rows: pa.RecordBatch, scan: FileScan, fields: FileFields) -> pa.RecordBatch:
    arrays = []
    for field in scan.fields:
        at = fields.find(field)
        if field.constant is not None:
            arrays.append(pa.repeat(field.constant, rows.num_rows))
        elif at is None:
            arrays.append(missing_values(field, rows.num_rows))
        else:
            arrays.append(conform(rows.column(at), field))
    return join_columns(arrays, scan.schema, rows.num_rows)


def _parse_schema(record: Any) -> pa.Schema:
    """Return the columns of an Avro file, with their field ids; nested ones are left out."""
    columns = []
    for each in record["fields"]:
        kind = _column_type(each["type"])
        if kind is not None:
            number = each.get("field-id")
            metadata = {} if number is None else {FIELD_ID: str(number).encode()}
            columns.append(pa.field(each["name"], kind, metadata=metadata))
    return pa.schema(columns)


def _column_type(kind: Any) -> pa.DataType | None:
    if isinstance(kind, list):
        [kind] = [each for each in kind if each != "null"] or ["null"]
    if not isinstance(kind, Mapping):
        return _TYPES.get(kind)
    logical = str(kind.get("logicalType"))
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    if logical == "timestamp-micros" and kind.get(_ADJUSTED):
        return pa.timestamp("us", "UTC")
    if logical in _LOGICAL_TYPES:
        return _LOGICAL_TYPES[logical]
    if kind["type"] == "fixed":
        return pa.binary(kind["size"])
    return _TYPES.get(kind["type"])
