"""The fields of keys and values as Arrow fields, from which all schema texts are made.

Optional field metadata:

- `PARQUET:field_id`: the column's stable id; all fields of a struct have one, or none.
- `comment`: description of a column, UTF-8; becomes the documentation in the schema.
- `tailerd.type`: marks variants (`VARIANT_FIELD`).
- `tailerd.record`: full name of the record a struct becomes; set here.
- `tailerd.number`: a fixed Protobuf field number; set here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tailerd.changefeed.change_batch import (
    CHANGE_COLUMNS,
    COMMENT,
    FIELD_ID,
    value_schema,
    with_change_columns,
)
from tailerd.records.base import FormatOptions
from tailerd.records.record_keys import stable_fields

RECORD_NAME = b"tailerd.record"
NUMBER = b"tailerd.number"

SOURCE_NAME = "io.tailerd.connector.Source"
FIRST_CHANGE_NUMBER = 18_997
"""First number of the three change columns, directly below those that Protobuf reserves."""

_TIMES = ("ts_ms", "ts_us", "ts_ns")

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
"""Schema types as in registries (`schemaType`)."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """A record's full name, such as `<topic>.Value`, and its fields in order."""

    name: str
    fields: tuple[pa.Field, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustedName:
    """A name that the format does not allow.

    Attributes:
        path: Enclosing columns, outermost first; empty for a record's own name.
        name: Name in the table.
        adjusted: Name in the schema.
    """

    path: tuple[str, ...]
    name: str
    adjusted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSchema:
    """A schema for a registry.

    Attributes:
        kind: The registry's `schemaType`.
        name: Full name of its record, for subjects that are named after records.
        text: The schema.
        adjusted: Names that differ from the table's.
    """

    kind: SchemaKind
    name: str
    text: str
    adjusted: tuple[AdjustedName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchemas:
    """The schemas of a record; `key` is None for records without keys."""

    key: WrittenSchema | None
    value: WrittenSchema


def topic_name(options: FormatOptions) -> str:
    """Return Debezium's name of the table, which is also the default topic name."""
    parts = (options.name, options.db, options.schema, options.table)
    return ".".join(part for part in parts if part)


def row_shape(options: FormatOptions, rows: pa.Schema) -> RecordShape:
    """Return the shape of rows with their change columns."""
    *columns, kind, version, timestamp = with_change_columns(value_schema(rows))
    changes = [
        field.with_metadata({NUMBER: str(FIRST_CHANGE_NUMBER + index).encode()})
        for index, field in enumerate((kind, version, timestamp))
    ]
    return RecordShape(f"{topic_name(options)}.Value", (*columns, *changes))


def image_shape(options: FormatOptions, rows: pa.Schema) -> RecordShape:
    """Return the shape of `before` and `after`."""
    return RecordShape(f"{topic_name(options)}.Value", tuple(value_schema(rows)))


def key_shape(options: FormatOptions, fields: Sequence[pa.Field]) -> RecordShape:
    """Return the shape of keys, which is the same for all widths of their types."""
    return RecordShape(f"{topic_name(options)}.Key", tuple(stable_fields(fields)))


def source_shape(options: FormatOptions) -> RecordShape:
    """Return the shape of Debezium's `source`."""
    names = ("snapshot", "db", "schema", "table", *(["table_id"] if options.table_id else []))
    fields = [
        *(pa.field(name, pa.string(), False) for name in ("version", "connector", "name")),
        *(pa.field(name, pa.int64(), False) for name in _TIMES),
        *(pa.field(name, pa.string(), False) for name in names),
        pa.field("commit_version", pa.int64(), False),
        pa.field("commit_timestamp", pa.string(), False),
        pa.field("change_source", pa.string(), False),
        pa.field("sequence", pa.string()),
    ]
    return RecordShape(SOURCE_NAME, tuple(fields))


def envelope_shape(options: FormatOptions, rows: pa.Schema) -> RecordShape:
    """Return the shape of Debezium's envelope around rows."""
    image, source = image_shape(options, rows), source_shape(options)
    fields = [
        _record_field("before", image, nullable=True),
        _record_field("after", image, nullable=True),
        _record_field("source", source, nullable=False),
        pa.field("op", pa.string(), False),
        *(pa.field(name, pa.int64()) for name in _TIMES),
    ]
    return RecordShape(f"{topic_name(options)}.Envelope", tuple(fields))


def _record_field(name: str, shape: RecordShape, *, nullable: bool) -> pa.Field:
    kind = pa.struct(list(shape.fields))
    return pa.field(name, kind, nullable, {RECORD_NAME: shape.name.encode()})


def read_comment(field: pa.Field) -> str:
    """Return the column's comment; empty if it has none."""
    return str((field.metadata or {}).get(COMMENT, b""), "utf-8", "replace")


def read_field_id(field: pa.Field) -> int | None:
    """Return the column's stable id; None if it has none."""
    raw = (field.metadata or {}).get(FIELD_ID, b"")
    return int(raw) if raw.isdigit() else None


def read_record_name(field: pa.Field) -> str:
    """Return the record name set on a struct; empty if none is set."""
    return str((field.metadata or {}).get(RECORD_NAME, b""), "utf-8")


def is_change_column(field: pa.Field) -> bool:
    """Return whether this is one of the three change columns, not a table column of that name."""
    return field.name in CHANGE_COLUMNS and NUMBER in (field.metadata or {})
