"""Converts file statistics between JSON and the columns of checkpoints.

A bound that cannot be represented in the other form is left out: statistics are optional
everywhere, and without a bound a reader only cannot skip the file.

Protocol: PROTOCOL.md#per-file-statistics, #checkpoints (stats_parsed)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.protocol.actions import UNREADABLE
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.schema import (
    VOID,
    DataType,
    PrimitiveType,
    StructType,
    arrow_type,
    parse_schema,
)
from tailerd.formats.delta.protocol.snapshot import TableState

_UNBOUNDED = frozenset({"boolean", "binary", "variant", "void"})
"""Types for which writers keep no bounds, or without a value."""

_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FORMATTABLE_DAYS = (-12_687_427, 11_248_737)
"""Days since the epoch of the years -32767 to 32767."""

# Numbers are decoded as decimals to keep all digits, and converted to floats for float columns.
_JSON = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def statistics_type(state: TableState) -> pa.StructType:
    """Return the type of `stats_parsed`: bounds and null counts by physical names."""
    schema = parse_schema(state.metadata.schema_text)
    partitions = set(state.metadata.partition_columns)
    columns = StructType(tuple(item for item in schema.fields if item.name not in partitions))
    bounds = _struct(columns, state.column_mapping, _bound_type)
    counts = _struct(columns, state.column_mapping, _count_type)
    members: dict[str, pa.DataType] = {"numRecords": pa.int64(), "tightBounds": pa.bool_()}
    if bounds is not None:
        members |= {"minValues": bounds, "maxValues": bounds}
    if counts is not None:
        members["nullCount"] = counts
    return pa.struct(list(members.items()))


def _struct(
    columns: StructType, mapping: str, leaf: Callable[[DataType], pa.DataType | None]
) -> pa.StructType | None:
    """Return a struct of the columns for which `leaf` returns a type; None if there are none."""
    members = []
    for item in columns.fields:
        inner = item.type
        kind = _struct(inner, mapping, leaf) if isinstance(inner, StructType) else leaf(inner)
        if kind is not None:
            members.append((item.physical_name(mapping), kind))
    return pa.struct(members) if members else None


def _count_type(data_type: DataType) -> pa.DataType | None:
    return None if data_type == VOID else pa.int64()


def _bound_type(data_type: DataType) -> pa.DataType | None:
    if not isinstance(data_type, PrimitiveType) or data_type.name in _UNBOUNDED:
        return None
    try:
        return arrow_type(data_type, "")
    except UnsupportedFeatureError:
        return None


def parse_statistics(texts: Sequence[str | None], kind: pa.StructType) -> pa.StructArray:
    """Return statistics texts as columns; an unreadable text counts as absent."""
    return _column([_object(text) for text in texts], kind)


def _object(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        return _JSON.decode(text)
    except UNREADABLE:
        return None


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        rows = [value if isinstance(value, dict) else None for value in values]
        members = [
            _column([None if row is None else row.get(item.name) for row in rows], item.type)
            for item in kind
        ]
        is_null = pa.array([row is None for row in rows])
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=is_null)
    convert = _converter(kind)
    return pa.array([None if value is None else convert(value) for value in values], kind)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    types = pa.types
    if types.is_integer(kind):
        bits = kind.bit_width - 1
        return lambda v: v if type(v) is int and -(1 << bits) <= v < 1 << bits else None
    if types.is_floating(kind):
        return lambda v: float(v) if isinstance(v, int | Decimal) else None
    if types.is_string(kind):
        return lambda v: v if isinstance(v, str) else None
    if types.is_boolean(kind):
        return lambda v: v if isinstance(v, bool) else None
    return lambda v: _parse_scalar(v, kind)


def _parse_scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Parse dates, times and decimals, for which JSON has no type."""
    if isinstance(value, bool | dict | list):
        return None
    try:
        scalar = parse_partition_value(str(value), kind, "")
    except CorruptLogError:
        return None
    # A rounded bound would exclude rows.
    if pa.types.is_decimal(kind) and scalar.as_py() != Decimal(str(value)):
        return None
    return scalar


def statistics_texts(parsed: pa.StructArray) -> pa.StringArray:
    """Return statistics of a `statistics_type` as texts; null for rows without statistics."""
    rows = _as_json_values(parsed).to_pylist()
    return pa.array(
        [None if row is None else _ENCODER.encode(_prune_row(row)).decode() for row in rows],
        pa.string(),
    )


def _as_json_values(array: pa.Array) -> pa.Array:
    """Convert dates and times to texts."""
    kind = array.type
    if pa.types.is_struct(kind):
        members = [
            _as_json_values(pc.struct_field(array, index)) for index in range(kind.num_fields)
        ]
        names = [item.name for item in kind]
        return pa.StructArray.from_arrays(members, names, mask=pc.is_null(array))
    if pa.types.is_timestamp(kind):
        return pc.replace_substring(_format_times(array), " ", "T")
    if pa.types.is_date(kind):
        return _format_times(array)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind))
    if pa.types.is_binary(kind) or pa.types.is_nested(kind):
        return pa.nulls(len(array))
    return array


def _format_times(array: pa.Array) -> pa.StringArray:
    """Return dates or times as texts; null for years that Arrow cannot format."""
    kind = array.type
    if pa.types.is_date(kind):
        days = array.cast(pa.int32())
    else:
        days = pc.divide(array.cast(pa.int64()), _PER_DAY[kind.unit])
    is_formattable = pc.and_(
        pc.greater_equal(days, _FORMATTABLE_DAYS[0]), pc.less_equal(days, _FORMATTABLE_DAYS[1])
    )
    return pc.if_else(is_formattable, array, pa.scalar(None, kind)).cast(pa.string())


def _prune_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _prune_row(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }
