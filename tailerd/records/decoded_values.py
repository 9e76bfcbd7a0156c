"""Convert single values, decoded from Avro or Protobuf, to those of the JSON formats. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from tailerd.records.json_text import spaced_text

Value = Callable[[Any], Any]


def key_text(key: object) -> str:
    """Return the JSON text of a map's key."""
    if isinstance(key, str):
        return key
    text = msgspec.json.encode(key).decode()
    return spaced_text(text) if isinstance(key, dict | list) else text


def as_it_is(found: Any) -> Any:
    """Return the value unchanged."""
    return found


def double_value(found: float) -> float | str:
    """Return a double, or its text if JSON has no such number."""
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"


def float_value(found: float) -> float | str:
    """Return a 32-bit float, decoded to a double, with the digits that the JSON formats write."""
    # The shortest digits of the 32-bit number, not of the double that it was decoded to.
    return float(str(np.float32(found))) if math.isfinite(found) else double_value(found)


def decimal_text(found: bytes, scale: int) -> str:
    """Return the digits of an unscaled decimal, big-endian two's complement."""
    unscaled = int.from_bytes(found, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return ("-" if unscaled < 0 else "") + whole + (f".{fraction}" if fraction else "")
