"""Shows from the statistics in a Parquet footer that no row of a row group can meet a condition.

Only for types whose order is certain and that are read without a change of value: signed integers,
decimals, dates, times of the new calendar, and texts. Anything else may meet it.

Parquet format: parquet.thrift, Statistics
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from tailerd.changefeed.column_filter import ColumnFilter, may_pass_within
from tailerd.reading.parquet_chunks import ColumnChunk, FileFooter
from tailerd.rows.groups import widened_bounds

_EPOCH = datetime.date(1970, 1, 1)
_TIMES = {zone: datetime.datetime(1970, 1, 1, tzinfo=zone) for zone in (None, datetime.UTC)}
_UNITS = {"ms": 1000, "us": 1}
_EXACT = Context(prec=80)
_INTEGERS = {"INT32": "<i", "INT64": "<q"}


def may_have_match(
    footer: FileFooter, chunk: ColumnChunk, stored: pa.DataType, kind: pa.DataType, by: ColumnFilter
) -> bool:
    """Return whether a row of a column chunk can meet a condition.

    Args:
        stored, kind: Types of the column in the file, and as it is compared.
    """
    found = footer.statistics(chunk)
    lower = upper = None
    decode = _find_decoder(chunk.physical_type, stored, kind)
    # The order of old statistics is that of signed bytes.
    if decode is not None and (found.is_ordered or chunk.physical_type in _INTEGERS):
        lower, upper = widened_bounds(_decode(decode, found.lower), _decode(decode, found.upper))
    return may_pass_within(lower, upper, found.null_count, chunk.num_values, by)


def _decode(decode: Callable[[bytes], Any], encoded: bytes | None) -> Any:
    try:
        return None if encoded is None else decode(encoded)
    except (struct.error, OverflowError, UnicodeDecodeError):
        return None


def _find_decoder(
    physical: str, stored: pa.DataType, kind: pa.DataType
) -> Callable[[bytes], Any] | None:
    types = pa.types
    if types.is_decimal(stored) and stored == kind and physical != "BYTE_ARRAY":
        step = -1 if physical in _INTEGERS else 1
        return lambda encoded: _EXACT.scaleb(
            Decimal(int.from_bytes(encoded[::step], "big", signed=True)), -stored.scale
        )
    if physical == "BYTE_ARRAY" and (types.is_string(stored) or types.is_large_string(stored)):
        return bytes.decode if types.is_string(kind) or types.is_large_string(kind) else None
    if (form := _INTEGERS.get(physical)) is None:
        return None
    if types.is_signed_integer(stored) and types.is_signed_integer(kind):
        return lambda encoded: struct.unpack(form, encoded)[0]
    if types.is_date32(stored) and types.is_date32(kind):
        return lambda encoded: _EPOCH + datetime.timedelta(struct.unpack(form, encoded)[0])
    if types.is_timestamp(stored) and types.is_timestamp(kind) and stored.unit in _UNITS:
        if (stored.tz is None) != (kind.tz is None):
            return None
        start, step = _TIMES[None if stored.tz is None else datetime.UTC], _UNITS[stored.unit]
        return lambda encoded: (
            start + datetime.timedelta(microseconds=struct.unpack(form, encoded)[0] * step)
        )
    return None
