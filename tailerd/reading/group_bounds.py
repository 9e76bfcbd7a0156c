"""Shows from the statistics in a Parquet footer that no row of a row group can meet a condition.

Only for types whose order is certain and that are read without a change of value: signed integers,
decimals, dates, times of the new calendar, and texts. Anything else may meet it.

Parquet format: parquet.thrift, Statistics
"""

from __future__ import annotations

import datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from tailerd.changefeed.column_filter import ColumnFilter, may_pass_within
from tailerd.reading.parquet_chunks import ColumnChunk, FileFooter
from tailerd.rows.groups import widened_bounds

_EPOCH = datetime.date(1970, 1, 1)
_UNITS = {"ms": 1000, "us": 1}
_EXACT = Context(prec=80)
_SIZES = {"INT32": 4, "INT64": 8}


def may_have_match(
    footer: FileFooter, chunk: ColumnChunk, stored: pa.DataType, kind: pa.DataType, by: ColumnFilter
) -> bool:
    """Return whether a row of a column chunk can meet a condition.

    Args:
        stored, kind: Types of the column in the file, and as it is compared.
    """
    found = footer.statistics(chunk)
    lower = upper = None
    # The order of old statistics is that of signed bytes.
    if found.is_ordered or chunk.physical_type in _SIZES:
        types = chunk.physical_type, stored, kind
        lower, upper = (_decode(each, *types) for each in (found.lower, found.upper))
    return may_pass_within(*widened_bounds(lower, upper), found.null_count, chunk.num_values, by)


def _decode(encoded: bytes | None, physical: str, stored: pa.DataType, kind: pa.DataType) -> Any:
    """Return a bound as conditions have it; None if it is not known."""
    types, size = pa.types, _SIZES.get(physical)
    if encoded is None or size not in (None, len(encoded)):
        return None
    number = int.from_bytes(encoded[::-1] if size else encoded, "big", signed=True)
    try:
        if physical == "BYTE_ARRAY":
            is_text = all(types.is_string(t) or types.is_large_string(t) for t in (stored, kind))
            return encoded.decode() if is_text else None
        if types.is_decimal(stored):
            return _EXACT.scaleb(Decimal(number), -stored.scale) if stored == kind else None
        if not size:
            return None
        if types.is_signed_integer(stored) and types.is_signed_integer(kind):
            return number
        if types.is_date32(stored) and types.is_date32(kind):
            return _EPOCH + datetime.timedelta(number)
        is_time = types.is_timestamp(stored) and types.is_timestamp(kind)
        if is_time and stored.unit in _UNITS and (stored.tz is None) == (kind.tz is None):
            start = datetime.datetime(1970, 1, 1, tzinfo=stored.tz and datetime.UTC)
            return start + datetime.timedelta(microseconds=number * _UNITS[stored.unit])
    except (OverflowError, UnicodeDecodeError):
        pass
    return None
