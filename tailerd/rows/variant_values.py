"""Variants by value: bytes that are equal where two variants mean the same.

The same are, as the encoding's equivalence classes say: exact numbers of any width and scale (1,
1.00), short and long strings, timestamps in micro- and nanoseconds, objects whatever the order of
their names. A float, a double and an exact number are never the same. NaN = NaN and -0.0 = 0.0, as
in columns.

Protocol: parquet-format VariantEncoding.md; PROTOCOL.md#variant-data-type
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import pyarrow as pa

_MAX_DEPTH = 200
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_INTEGERS = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMALS = {8: 4, 9: 8, 10: 16}
_TIMES = {12: (b"T", 1000), 13: (b"N", 1000), 18: (b"T", 1), 19: (b"N", 1)}
_FIXED = {11: (b"D", 4), 17: (b"c", 8), 20: (b"u", 16)}
_SIZED = {15: b"b", 16: b"s"}
_CONSTANTS = {0: b"n", 1: b"t", 2: b"f"}


def canonical_variants(array: pa.StructArray) -> pa.Array:
    """Return `large_binary`: equal bytes where variants are equal, null where one is null.

    Bytes that are no variant are equal only to themselves: it is for those who decode them to
    raise.
    """
    metadata, value = array.type.get_field_index("metadata"), array.type.get_field_index("value")
    columns = array.flatten()
    is_there = array.is_valid().to_pylist()
    found = [
        canonical_variant(names or b"", data or b"") if there else None
        for there, names, data in zip(
            is_there, columns[metadata].to_pylist(), columns[value].to_pylist(), strict=True
        )
    ]
    return pa.array(found, pa.large_binary())


def canonical_variant(metadata: bytes, value: bytes) -> bytes:
    """Return bytes that are equal for variants of equal value."""
    try:
        return _Reader(_names(metadata), value).read(0, 0)
    except (IndexError, struct.error, ValueError):
        return b"x" + _sized(metadata) + value


def _names(metadata: bytes) -> list[bytes]:
    header = metadata[0]
    if header & 0x0F != 1:
        raise ValueError("version")
    width = (header >> 6) + 1
    count = _unsigned(metadata, 1, width)
    start = 1 + width
    _require(metadata, start, (count + 1) * width)
    offsets = [_unsigned(metadata, start + index * width, width) for index in range(count + 1)]
    base = start + (count + 1) * width
    return [_bytes(metadata, base + begin, end - begin) for begin, end in pairwise(offsets)]


class _Reader:
    def __init__(self, names: list[bytes], data: bytes) -> None:
        self._names = names
        self._data = data
        self._values_left = len(data)

    def read(self, position: int, depth: int) -> bytes:
        # Every value has a byte of its own; offsets that share bytes could multiply without end.
        self._values_left -= 1
        if self._values_left < 0 or depth > _MAX_DEPTH:
            raise ValueError("its parts overlap, or it is too deep")
        head = _unsigned(self._data, position, 1)
        kind, header = head & 3, head >> 2
        if kind == _SHORT_STRING:
            return b"s" + _sized(_bytes(self._data, position + 1, header))
        if kind == _OBJECT:
            return self._object(position + 1, header, depth)
        if kind == _ARRAY:
            return self._array(position + 1, header, depth)
        return _primitive(self._data, header, position + 1)

    def _object(self, position: int, header: int, depth: int) -> bytes:
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
            members.append((name, self.read(values + offset, depth + 1)))
        members.sort()
        return b"o%d;" % count + b"".join(_sized(name) + member for name, member in members)

    def _array(self, position: int, header: int, depth: int) -> bytes:
        offset_width = (header & 3) + 1
        count_width = 4 if header >> 2 & 1 else 1
        count = _unsigned(self._data, position, count_width)
        offsets = position + count_width
        values = offsets + (count + 1) * offset_width
        _require(self._data, offsets, values - offsets)
        items = (
            self.read(
                values + _unsigned(self._data, offsets + index * offset_width, offset_width),
                depth + 1,
            )
            for index in range(count)
        )
        return b"a%d;" % count + b"".join(items)


def _primitive(data: bytes, kind: int, position: int) -> bytes:
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in _INTEGERS:
        return _exact(_signed(data, position, _INTEGERS[kind]), 0)
    if kind in _DECIMALS:
        scale = _unsigned(data, position, 1)
        return _exact(_signed(data, position + 1, _DECIMALS[kind]), scale)
    if kind in _TIMES:
        tag, factor = _TIMES[kind]
        return tag + b"%d;" % (_signed(data, position, 8) * factor)
    if kind in _FIXED:
        tag, width = _FIXED[kind]
        return tag + _bytes(data, position, width)
    if kind in _SIZED:
        length = _unsigned(data, position, 4)
        return _SIZED[kind] + _sized(_bytes(data, position + 4, length))
    if kind == 7:
        return b"F" + _floating(data, position, "<d", 8)
    if kind == 14:
        return b"g" + _floating(data, position, "<f", 4)
    raise ValueError("type")


def _exact(unscaled: int, scale: int) -> bytes:
    if scale > 38:
        raise ValueError("scale")
    while scale and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    return b"d%de%d;" % (unscaled, scale)


def _floating(data: bytes, position: int, form: str, width: int) -> bytes:
    [number] = struct.unpack(form, _bytes(data, position, width))
    return struct.pack(form, math.nan if math.isnan(number) else number + 0.0)


def _sized(data: bytes) -> bytes:
    return b"%d:" % len(data) + data


def _require(data: bytes, position: int, length: int) -> None:
    if length < 0 or position + length > len(data):
        raise ValueError("outside the data")


def _bytes(data: bytes, position: int, length: int) -> bytes:
    _require(data, position, length)
    return data[position : position + length]


def _unsigned(data: bytes, position: int, width: int) -> int:
    return int.from_bytes(_bytes(data, position, width), "little")


def _signed(data: bytes, position: int, width: int) -> int:
    return int.from_bytes(_bytes(data, position, width), "little", signed=True)
