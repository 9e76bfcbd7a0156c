"""Convert variant values from the binary encoding of Parquet and Spark to JSON text.

A value is read with its metadata, a dictionary of the names in its objects.

Protocol: parquet-format VariantEncoding.md; PROTOCOL.md#variant-data-type
"""

from __future__ import annotations

import math
import struct
import uuid
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache

from tailerd.errors import UnreadableDataFileError
from tailerd.records.json_text import (
    date_text,
    quote_text,
    quote_utf8,
    time_text,
    timestamp_text,
)
from tailerd.remedies import LEAVE_OUT, START_AFTER
from tailerd.rows.variant_encoding import (
    BAD_BYTES,
    VariantReader,
    bytes_at,
    signed_at,
    unsigned_at,
    variant_names,
)


def variant_json(metadata: bytes | None, value: bytes) -> str:
    """Return the JSON text of a variant.

    Numbers keep their digits; dates, timestamps and binary are strings as in columns of those
    types; nanoseconds have nine digits; NaN and infinities are strings.

    Raises:
        UnreadableDataFileError: The bytes are not a variant of version 1.
    """
    try:
        return VariantReader(_names(metadata or b""), value, _JSON_TEXT).read()
    except BAD_BYTES as error:
        raise UnreadableDataFileError(
            f"A variant value of {len(value)} bytes cannot be read ({error}), because it is damaged"
            " or of a newer encoding.",
            remedy=f"Rewrite the row, {START_AFTER}, or {LEAVE_OUT}.",
        ) from error


@lru_cache(maxsize=256)
def _names(metadata: bytes) -> tuple[str, ...]:
    """Return the dictionary's names as JSON strings."""
    return tuple(quote_utf8(name) for name in variant_names(metadata))


class _JsonText:
    """A `VariantMaker` that produces JSON text."""

    def primitive(self, data: bytes, kind: int, position: int) -> str:
        read = _PRIMITIVES.get(kind)
        if read is None:
            raise ValueError(f"primitive type {kind}")
        return read(data, position)

    def short_string(self, text: bytes) -> str:
        return quote_utf8(text)

    def object(self, members: Sequence[tuple[str, str]]) -> str:
        return "{" + ",".join(f"{name}:{text}" for name, text in members) + "}"

    def array(self, items: Sequence[str]) -> str:
        return "[" + ",".join(items) + "]"


_JSON_TEXT = _JsonText()


def _integer(width: int) -> Callable[[bytes, int], str]:
    return lambda data, position: str(signed_at(data, position, width))


def _decimal(width: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, position: int) -> str:
        scale = unsigned_at(data, position, 1)
        if scale > 38:
            raise ValueError(f"decimal scale {scale}")
        unscaled = signed_at(data, position + 1, width)
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
        return ("-" if unscaled < 0 else "") + whole + (f".{fraction}" if fraction else "")

    return read


def _double(data: bytes, position: int) -> str:
    number = struct.unpack("<d", bytes_at(data, position, 8))[0]
    return _special(number) or repr(number)


def _float(data: bytes, position: int) -> str:
    number = struct.unpack("<f", bytes_at(data, position, 4))[0]
    if text := _special(number):
        return text
    # The shortest digits that parse to the same 32-bit number; nine are always enough.
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", number):
            return repr(short)
    return repr(number)


def _special(number: float) -> str:
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    return ""


def _long_bytes(data: bytes, position: int) -> bytes:
    return bytes_at(data, position + 4, unsigned_at(data, position, 4))


def _timestamp(*, is_utc: bool) -> Callable[[bytes, int], str]:
    return lambda data, position: f'"{timestamp_text(signed_at(data, position, 8), is_utc=is_utc)}"'


def _nanoseconds(*, is_utc: bool) -> Callable[[bytes, int], str]:
    def read(data: bytes, position: int) -> str:
        micros, nanos = divmod(signed_at(data, position, 8), 1000)
        text = timestamp_text(micros, is_utc=False)
        return f'"{text}{nanos:03d}{"Z" if is_utc else ""}"'

    return read


_PRIMITIVES: dict[int, Callable[[bytes, int], str]] = {
    0: lambda data, position: "null",
    1: lambda data, position: "true",
    2: lambda data, position: "false",
    3: _integer(1),
    4: _integer(2),
    5: _integer(4),
    6: _integer(8),
    7: _double,
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: lambda data, position: f'"{date_text(signed_at(data, position, 4))}"',
    12: _timestamp(is_utc=True),
    13: _timestamp(is_utc=False),
    14: _float,
    15: lambda data, position: f'"{b64encode(_long_bytes(data, position)).decode()}"',
    16: lambda data, position: quote_utf8(_long_bytes(data, position)),
    17: lambda data, position: f'"{time_text(signed_at(data, position, 8))}"',
    18: _nanoseconds(is_utc=True),
    19: _nanoseconds(is_utc=False),
    20: lambda data, position: quote_text(str(uuid.UUID(bytes=bytes_at(data, position, 16)))),
}
