"""Rows as text that is the same whoever read them: Spark's Python objects, or Arrow's."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Mapping
from typing import Any


def canonical(row: Mapping[str, Any]) -> str:
    """Return a row as JSON with sorted keys; nulls are left out, as added columns have them."""
    bare = {name: _plain(value) for name, value in row.items() if value is not None}
    return json.dumps(bare, sort_keys=True)


def _plain(value: Any) -> Any:
    match value:
        case dt.datetime():
            aware = value if value.tzinfo is None else value.astimezone(dt.UTC)
            return aware.replace(tzinfo=None).isoformat(timespec="microseconds")
        case dt.date():
            return str(value)
        case decimal.Decimal():
            # Widened or not: the scale is the type's.
            return f"{value.normalize():f}"
        case bytes() | bytearray():
            return value.hex()
        case float():
            return repr(value)
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
        case [(_, _), *_] if isinstance(value[0], tuple):
            # A map, as Arrow gives it.
            return {str(k): _plain(v) for k, v in value}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value
