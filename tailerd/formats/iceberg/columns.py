"""Columns of a schema: their types, and how they are found in data files.

Columns are found by field id; in files without ids by the names of the table's name mapping. If a
file lacks a column, its value is that of the identity partition, else the initial default.

Specification: "Schemas and Data Types", "Column Projection", "Default values", "Appendix A"
"""

from __future__ import annotations

import binascii
import datetime
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from tailerd.changefeed.change_batch import COMMENT, FIELD_ID, VARIANT_FIELD
from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.plain_schema import refuse_change_columns
from tailerd.reading.file_scan import FieldScan
from tailerd.remedies import LEAVE_OUT

_VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), False)]
)
_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.string(),
    "binary": pa.binary(),
    "unknown": pa.null(),
    "variant": _VARIANT,
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.ASCII)
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]", re.ASCII)
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A schema, as the metadata has it; shared by many tasks.

    Attributes:
        text: JSON of the schema.
        name_mapping: JSON of the table's `schema.name-mapping.default`; empty without one.
    """

    text: str
    name_mapping: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a schema.

    Attributes:
        scan: How it is found in a file; None if its type is not supported.
        type_name: Its type as in the metadata, human-readable.
    """

    id: int
    name: str
    type_name: str
    scan: FieldScan | None


@functools.lru_cache(maxsize=256)
def parse_columns(schema: TableSchema) -> tuple[Column, ...]:
    """Return the columns of a schema, in order.

    Raises:
        CorruptLogError: The schema is malformed.
    """
    try:
        mapping = _parse_mapping(schema.name_mapping)
        return tuple(_column(each, mapping) for each in msgspec.json.decode(schema.text)["fields"])
    except (KeyError, TypeError, ValueError, RecursionError, binascii.Error) as error:
        raise CorruptLogError(
            f"A schema in the table's metadata is malformed: {error!r}.",
            remedy="Its writer is broken: restore the metadata file from a backup.",
        ) from error


def _column(field: Mapping[str, Any], mapping: _Names) -> Column:
    try:
        scan = _field(field, mapping, 0)
    except UnsupportedFeatureError:
        scan = None
    return Column(field["id"], field["name"], _describe(field["type"]), scan)


_Names = Mapping[int, tuple[str, ...]]


def _parse_mapping(text: str) -> _Names:
    """Return the names by field id."""
    found: dict[int, tuple[str, ...]] = {}

    def add(fields: Iterable[Mapping[str, Any]]) -> None:
        for each in fields:
            if (number := each.get("field-id")) is not None:
                found[number] = tuple(each["names"])
            add(each.get("fields") or ())

    add(msgspec.json.decode(text) if text else ())
    return found


def _field(field: Mapping[str, Any], mapping: _Names, depth: int) -> FieldScan:
    number, kind = field["id"], field["type"]
    metadata = {FIELD_ID: str(number).encode()}
    if doc := field.get("doc"):
        metadata[COMMENT] = doc.encode(errors="replace")
    return _scan(field["name"], kind, number, metadata, mapping, field, depth)


def _scan(
    name: str,
    kind: Any,
    number: int,
    metadata: dict[bytes, bytes],
    mapping: _Names,
    field: Mapping[str, Any],
    depth: int,
) -> FieldScan:
    """Return how to read a field or a part of one.

    Raises:
        UnsupportedFeatureError: Its type is not supported.
    """
    if depth > _MAX_DEPTH:
        raise RecursionError("types are nested too deep")
    children = _children(kind, mapping, depth)
    arrow = _arrow_type(kind, name, [child.target for child in children])
    if kind == "variant":
        metadata = metadata | VARIANT_FIELD
    target = pa.field(name, arrow, metadata=metadata)
    default = field.get("initial-default")
    return FieldScan(
        target=target,
        name=name,
        field_id=number,
        other_names=mapping.get(number, ()),
        children=children,
        missing=None if default is None else _default(kind, default, arrow, children),
        is_uuid=kind == "uuid",
    )


def _children(kind: Any, mapping: _Names, depth: int) -> tuple[FieldScan, ...]:
    if kind == "variant":
        return tuple(FieldScan(target=each, name=each.name) for each in _VARIANT)
    if not isinstance(kind, Mapping):
        return ()
    if kind["type"] == "struct":
        return tuple(_field(each, mapping, depth + 1) for each in kind["fields"])
    parts = {"list": ("element",), "map": ("key", "value")}.get(kind["type"], ())
    return tuple(
        _scan(
            "item" if part == "element" else part,
            kind[part],
            kind[f"{part}-id"],
            {},
            mapping,
            {},
            depth + 1,
        )
        for part in parts
    )


def _arrow_type(kind: Any, name: str, children: Sequence[pa.Field]) -> pa.DataType:
    if isinstance(kind, str):
        if (found := _TYPES.get(kind)) is not None:
            return found
        if (decimal := _DECIMAL.fullmatch(kind)) is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if _FIXED.fullmatch(kind):
            return pa.binary()
        raise _unsupported(name, kind)
    match kind["type"]:
        case "struct":
            return pa.struct(children)
        case "list":
            return pa.list_(children[0])
        case "map":
            return pa.map_(children[0].with_nullable(False), children[1])
    raise _unsupported(name, str(kind["type"]))


def _unsupported(name: str, kind: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"Column {name!r} has the type {kind}, which is not read in this release.",
        remedy=f"To read the other columns, {LEAVE_OUT}.",
    )


def _describe(kind: Any) -> str:
    if not isinstance(kind, Mapping):
        return str(kind)
    match kind["type"]:
        case "struct":
            inside = (f"{each['name']}: {_describe(each['type'])}" for each in kind["fields"])
            return f"struct<{', '.join(inside)}>"
        case "list":
            return f"list<{_describe(kind['element'])}>"
        case "map":
            return f"map<{_describe(kind['key'])}, {_describe(kind['value'])}>"
    return str(kind["type"])


def _default(kind: Any, value: Any, arrow: pa.DataType, children: Sequence[FieldScan]) -> pa.Scalar:
    """Return a default. Specification: "JSON single-value serialization"."""
    if not isinstance(kind, Mapping):
        return _leaf_default(kind, value, arrow)
    return pa.scalar(_nested_default(kind, value, children), arrow)


def _nested_default(kind: Mapping[str, Any], value: Any, children: Sequence[FieldScan]) -> Any:
    if kind["type"] == "struct":
        return {
            child.target.name: _plain(part["type"], value[str(part["id"])], child)
            if str(part["id"]) in value
            else _as_python(child.missing)
            for part, child in zip(kind["fields"], children, strict=True)
        }
    if kind["type"] == "list":
        return [_plain(kind["element"], each, children[0]) for each in value]
    keys, values = (
        [_plain(kind[part], each, child) for each in value[f"{part}s"]]
        for part, child in zip(("key", "value"), children, strict=True)
    )
    return list(zip(keys, values, strict=True))


def _plain(kind: Any, value: Any, child: FieldScan) -> Any:
    """Return a part of a nested default as Python has it."""
    if value is None:
        return None
    return _as_python(_default(kind, value, child.target.type, child.children))


def _as_python(value: pa.Scalar | None) -> Any:
    # Python has no nanoseconds.
    return value.value if isinstance(value, pa.TimestampScalar) else value and value.as_py()


def _leaf_default(kind: str, value: Any, arrow: pa.DataType) -> pa.Scalar:
    if pa.types.is_binary(arrow):
        return pa.scalar(bytes.fromhex(value), arrow)
    if pa.types.is_decimal(arrow):
        return pa.scalar(Decimal(value), arrow)
    if pa.types.is_time(arrow):
        return pa.scalar(datetime.time.fromisoformat(value), arrow)
    if pa.types.is_temporal(arrow):
        return pa.scalar(value, pa.string()).cast(arrow)
    return pa.scalar(value, arrow)


def partition_scalar(value: Any, arrow: pa.DataType) -> pa.Scalar:
    """Return the value of an identity partition as a column of a type has it.

    Args:
        value: As the manifest has it: numbers of days or ticks, or what Avro's logical types give.

    Raises:
        CorruptLogError: It is not a value of the type.
    """
    try:
        if value is None:
            return pa.scalar(None, arrow)
        if isinstance(value, UUID):
            return pa.scalar(str(value), arrow)
        if isinstance(value, int) and pa.types.is_temporal(arrow):
            width = pa.int32() if pa.types.is_date(arrow) else pa.int64()
            return pa.array([value], width).view(arrow)[0]
        if isinstance(value, bytes) and pa.types.is_string(arrow):
            return pa.scalar(str(UUID(bytes=value)), arrow)
        if isinstance(value, Decimal):
            return pa.scalar(value).cast(arrow)
        if isinstance(value, datetime.datetime) and arrow.tz is None:
            return pa.scalar(value.replace(tzinfo=None), arrow)
        return pa.scalar(value, arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise CorruptLogError(
            f"The value {value!r} of a partition is not a valid {arrow}: {error}.",
            remedy="Its writer is broken: rewrite that partition.",
        ) from error


@functools.lru_cache(maxsize=1024)
def file_scans(
    schema: TableSchema, columns: tuple[str, ...] | None, identities: tuple[tuple[int, Any], ...]
) -> tuple[FieldScan, ...]:
    """Return how to read columns from a file of a partition.

    Args:
        columns: Names to read, as far as the schema has them; None for all.
        identities: Values of identity partitions, by field id of the column.

    Raises:
        TableError: As `column_scans`.
    """
    scans = column_scans(schema, columns)
    known = dict(identities)
    return tuple(
        replace(each, missing=partition_scalar(known[each.field_id], each.target.type))
        if each.field_id in known
        else each
        for each in scans
    )


def column_scans(
    schema: TableSchema, columns: Sequence[str] | None = None
) -> tuple[FieldScan, ...]:
    """Return how to read each column from a data file, in schema order.

    Args:
        columns: Names to read, as far as the schema has them; None for all.

    Raises:
        UnsupportedFeatureError: A column has an unsupported type.
        TableError: A column has the name of a change column.
        CorruptLogError: The schema is malformed.
    """
    return _column_scans(schema, None if columns is None else tuple(columns))


@functools.lru_cache(maxsize=256)
def _column_scans(schema: TableSchema, columns: tuple[str, ...] | None) -> tuple[FieldScan, ...]:
    found = parse_columns(schema)
    if columns is not None:
        requested = frozenset(columns)
        found = tuple(each for each in found if each.name in requested)
    refuse_change_columns(each.name for each in found)
    for each in found:
        if each.scan is None:
            raise _unsupported(each.name, each.type_name)
    return tuple(each.scan for each in found if each.scan is not None)


def rows_schema(schema: TableSchema, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of rows, without change columns.

    Raises:
        TableError: As `column_scans`.
    """
    return pa.schema([each.target for each in column_scans(schema, columns)])
