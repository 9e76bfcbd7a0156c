"""Bounds of a file's columns, from its statistics. Pure.

Protocol: PROTOCOL.md#per-file-statistics
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tailerd.formats.delta.protocol.actions import UNREADABLE
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.schema import PrimitiveType, parse_schema
from tailerd.rows.groups import ColumnBounds, widened_bounds

MAX_COLUMNS = 8
"""Columns whose bounds are used: only the first ones have statistics, and they cluster files."""


class _Bounds(Struct, rename="camel", gc=False):
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_count: dict[str, Any] = {}


_FIRST_GREGORIAN_DATE = dt.date(1582, 10, 15)
_YEAR_1900 = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
"""Earlier bounds may be of the legacy calendar, if a writer took them from the file's footer."""

_TEXT = msgspec.json.Decoder(str | None)
_BOUNDS = msgspec.json.Decoder(_Bounds)


def bounds_of(stats: str | bytes | None, schema: TableSchema) -> dict[str, ColumnBounds]:
    """Return the bounds of a file's columns by physical name; empty if they are not known.

    Only for types that JSON represents exactly and whose order is certain: integers, texts, dates
    and times. Floats have NaN outside of all bounds; decimals are floats in JSON.

    Args:
        stats: The `stats` of an action as in the log: a JSON text of a JSON object.
    """
    if not stats:
        return {}
    try:
        text = _TEXT.decode(stats)
        found = _BOUNDS.decode(text) if text else _Bounds()
    except UNREADABLE:
        # Statistics are optional: unreadable ones count as absent.
        return {}
    columns = {}
    for name, kind in _ordered(schema):
        nulls = found.null_count.get(name)
        lower, upper = widened_bounds(
            _value(found.min_values.get(name), kind), _value(found.max_values.get(name), kind)
        )
        columns[name] = ColumnBounds(
            lower=lower, upper=upper, null_count=nulls if type(nulls) is int else None
        )
    return columns


@functools.lru_cache(maxsize=64)
def _ordered(schema: TableSchema) -> tuple[tuple[str, str], ...]:
    """Return physical name and type of the columns whose bounds are used; cached for many files."""
    return tuple(
        (field.physical_name(schema.column_mapping), field.type.name)
        for field in parse_schema(schema.text).fields
        if isinstance(field.type, PrimitiveType)
        and field.type.name in _PARSED
        and not field.char_length
        and field.name not in schema.partition_columns
    )[:MAX_COLUMNS]


def _value(value: Any, kind: str) -> Any:
    """Return a bound; None if it is not known."""
    try:
        return _PARSED[kind](value)
    except (ValueError, TypeError, OverflowError):
        return None


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _date(value: Any) -> dt.date | None:
    date = dt.date.fromisoformat(value)
    return None if date < _FIRST_GREGORIAN_DATE else date


def _instant(value: Any) -> dt.datetime | None:
    time = dt.datetime.fromisoformat(value)
    time = time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return None if time < _YEAR_1900 else time


def _local_time(value: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(value).replace(tzinfo=None)


_PARSED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("long", "bigint", "integer", "int", "short", "byte"), _integer),
    "string": _string,
    "date": _date,
    "timestamp": _instant,
    "timestamp_ntz": _local_time,
}
