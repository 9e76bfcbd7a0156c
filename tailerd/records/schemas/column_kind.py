"""Determine the kind of a column's values: all Arrow layouts of one type are one kind."""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

from tailerd.errors import UnsupportedFeatureError
from tailerd.records.json_columns import is_any_list, is_variant
from tailerd.remedies import LEAVE_OUT


class Kind(Enum):
    """Kinds of values; each format defines their encoding."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    UUID = "uuid"
    VARIANT = "variant"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    STRUCT = "struct"
    LIST = "list"
    MAP = "map"


_TESTS = (
    (pa.types.is_null, Kind.NULL),
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_integer, Kind.INTEGER),
    (pa.types.is_float64, Kind.DOUBLE),
    (pa.types.is_floating, Kind.FLOAT),
    (pa.types.is_decimal, Kind.DECIMAL),
    (pa.types.is_string, Kind.STRING),
    (pa.types.is_large_string, Kind.STRING),
    (pa.types.is_string_view, Kind.STRING),
    (pa.types.is_binary, Kind.BINARY),
    (pa.types.is_large_binary, Kind.BINARY),
    (pa.types.is_binary_view, Kind.BINARY),
    (pa.types.is_fixed_size_binary, Kind.BINARY),
    (pa.types.is_date, Kind.DATE),
    (pa.types.is_time, Kind.TIME),
    (pa.types.is_timestamp, Kind.TIMESTAMP),
    (pa.types.is_struct, Kind.STRUCT),
    (pa.types.is_map, Kind.MAP),
    (is_any_list, Kind.LIST),
)
_UUID = "arrow.uuid"


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the stored values, without dictionary, run ends or extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return stored_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return stored_type(kind.value_type)
    return kind


def choose_kind(field: pa.Field) -> Kind:
    """Return the kind of a column's values.

    Raises:
        UnsupportedFeatureError: The column's type is of no kind.
    """
    if is_variant(field):
        return Kind.VARIANT
    if getattr(field.type, "extension_name", "") == _UUID:
        return Kind.UUID
    stored = stored_type(field.type)
    for is_kind, kind in _TESTS:
        if is_kind(stored) and not (kind is Kind.DECIMAL and stored.scale < 0):
            return kind
    raise unsupported_error(field)


def unsupported_error(field: pa.Field) -> UnsupportedFeatureError:
    """Return the error for a column whose type the format cannot represent."""
    return UnsupportedFeatureError(
        f"Column {field.name!r} has the type {field.type}, which this value format cannot carry.",
        remedy=f"Use `format: json`, rewrite it in another type, or {LEAVE_OUT}.",
    )


def fits_int32(kind: pa.DataType) -> bool:
    """Return whether every value of an integer type fits a signed 32-bit integer."""
    return bool(kind.bit_width < 32 or (kind.bit_width == 32 and pa.types.is_signed_integer(kind)))


def is_wide_unsigned(kind: pa.DataType) -> bool:
    """Return whether an integer type has values that do not fit a signed 64-bit integer."""
    return bool(pa.types.is_uint64(kind))
