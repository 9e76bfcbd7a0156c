"""Variant values as JSON text: the binary encoding that Parquet and Spark share.

A value is read against its metadata, a dictionary of the names in its objects. Every position is
checked: damaged bytes raise, they never read outside the value.

Protocol: parquet-format VariantEncoding.md; PROTOCOL.md#variant-data-type
"""

from __future__ import annotations

import math
import struct
import uuid
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from tailerd.errors import LEAVE_OUT, START_BEHIND, UnreadableDataFileError
from tailerd.records.json_text import (
    date_text,
    quote_text,
    quote_utf8,
    time_text,
    timestamp_text,
)

_MAX_DEPTH = 200
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)


def variant_json(metadata: bytes | None, value: bytes) -> str:
    """Return the JSON text of a variant.

    Numbers stay numbers with the digits they have; dates, timestamps and binary are strings as in
    columns of those types; nanoseconds have nine digits; NaN and infinities are strings.

    Raises:
        UnreadableDataFileError: The bytes are no variant of version 1.
    """
    try:
        names = _names(metadata or b"")
        return _Reader(names, value).text(0, 0)
    except (IndexError, struct.error, ValueError) as error:
        raise UnreadableDataFileError(
            f"A variant value of {len(value)} bytes cannot be read ({error}), because it is damaged"
            " or of a newer encoding.",
            hint=f"Rewrite the row, {START_BEHIND}, or {LEAVE_OUT}.",
        ) from error


@lru_cache(maxsize=256)
def _names(metadata: bytes) -> tuple[str, ...]:
    """Return the dictionary's names as JSON strings."""
    header = metadata[0]
    if header & 0x0F != 1:
        raise ValueError(f"metadata version {header & 0x0F}")
    width = (header >> 6) + 1
    count = _unsigned(metadata, 1, width)
    start = 1 + width
    _require(metadata, start, (count + 1) * width)
    offsets = [_unsigned(metadata, start + index * width, width) for index in range(count + 1)]
    base = start + (count + 1) * width
    return tuple(
        quote_utf8(_bytes(metadata, base + begin, end - begin)) for begin, end in pairwise(offsets)
    )


class _Reader:
    """Reads one value; `text` follows the nesting."""

    def __init__(self, names: tuple[str, ...], data: bytes) -> None:
        self._names = names
        self._data = data
        self._values_left = len(data)

    def text(self, position: int, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        # Every value has a byte of its own; offsets that share bytes could multiply without end.
        self._values_left -= 1
        if self._values_left < 0:
            raise ValueError("its parts overlap")
        head = _unsigned(self._data, position, 1)
        kind, header = head & 3, head >> 2
        if kind == _SHORT_STRING:
            return quote_utf8(_bytes(self._data, position + 1, header))
        if kind == _OBJECT:
            return self._object(position + 1, header, depth)
        if kind == _ARRAY:
            return self._array(position + 1, header, depth)
        read = _PRIMITIVES.get(header)
        if read is None:
            raise ValueError(f"primitive type {header}")
        return read(self._data, position + 1)

    def _object(self, position: int, header: int, depth: int) -> str:
        offset_width, id_width = (header & 3) + 1, (header >> 2 & 3) + 1
        count_width = 4 if header >> 4 & 1 else 1
        count = _unsigned(self._data, position, count_width)
        ids = position + count_width
        offsets = ids + count * id_width
        values = offsets + (count + 1) * offset_width
        _require(self._data, ids, values - ids)
        members = []
        for index in range(count):
            name = self._names[_unsigned(self._data, ids + index * id_width, id_width)]
            offset = _unsigned(self._data, offsets + index * offset_width, offset_width)
            members.append(f"{name}:{self.text(values + offset, depth + 1)}")
        return "{" + ",".join(members) + "}"

    def _array(self, position: int, header: int, depth: int) -> str:
        offset_width = (header & 3) + 1
        count_width = 4 if header >> 2 & 1 else 1
        count = _unsigned(self._data, position, count_width)
        offsets = position + count_width
        values = offsets + (count + 1) * offset_width
        _require(self._data, offsets, values - offsets)
        items = []
        for index in range(count):
            offset = _unsigned(self._data, offsets + index * offset_width, offset_width)
            items.append(self.text(values + offset, depth + 1))
        return "[" + ",".join(items) + "]"


def _require(data: bytes, position: int, length: int) -> None:
    """Refuse a range outside the data, before anything is counted or allocated by it."""
    if length < 0 or position + length > len(data):
        raise ValueError(f"{length} bytes at {position} are not there")


def _bytes(data: bytes, position: int, length: int) -> bytes:
    _require(data, position, length)
    return data[position : position + length]


def _unsigned(data: bytes, position: int, width: int) -> int:
    return int.from_bytes(_bytes(data, position, width), "little")


def _signed(data: bytes, position: int, width: int) -> int:
    return int.from_bytes(_bytes(data, position, width), "little", signed=True)


def _integer(width: int) -> Callable[[bytes, int], str]:
    return lambda data, position: str(_signed(data, position, width))


def _decimal(width: int) -> Callable[[bytes, int], str]:
    def read(data: bytes, position: int) -> str:
        scale = _unsigned(data, position, 1)
        if scale > 38:
            raise ValueError(f"decimal scale {scale}")
        unscaled = _signed(data, position + 1, width)
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
        return ("-" if unscaled < 0 else "") + whole + (f".{fraction}" if fraction else "")

    return read


def _double(data: bytes, position: int) -> str:
    number = struct.unpack("<d", _bytes(data, position, 8))[0]
    return _special(number) or repr(number)


def _float(data: bytes, position: int) -> str:
    number = struct.unpack("<f", _bytes(data, position, 4))[0]
    if text := _special(number):
        return text
    # The shortest digits that give the same 32-bit number; nine always do.
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
    return _bytes(data, position + 4, _unsigned(data, position, 4))


def _timestamp(*, is_utc: bool) -> Callable[[bytes, int], str]:
    return lambda data, position: f'"{timestamp_text(_signed(data, position, 8), is_utc=is_utc)}"'


def _nanoseconds(*, is_utc: bool) -> Callable[[bytes, int], str]:
    def read(data: bytes, position: int) -> str:
        micros, nanos = divmod(_signed(data, position, 8), 1000)
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
    11: lambda data, position: f'"{date_text(_signed(data, position, 4))}"',
    12: _timestamp(is_utc=True),
    13: _timestamp(is_utc=False),
    14: _float,
    15: lambda data, position: f'"{b64encode(_long_bytes(data, position)).decode()}"',
    16: lambda data, position: quote_utf8(_long_bytes(data, position)),
    17: lambda data, position: f'"{time_text(_signed(data, position, 8))}"',
    18: _nanoseconds(is_utc=True),
    19: _nanoseconds(is_utc=False),
    20: lambda data, position: quote_text(str(uuid.UUID(bytes=_bytes(data, position, 16)))),
}
