"""Variants by value: bytes that are equal if two variants have the same value.

Equal, according to the encoding's equivalence classes: exact numbers of any width and scale (1,
1.00), short and long strings, timestamps in micro- and nanoseconds, objects whatever the order of
their names. A float, a double and an exact number are never equal. NaN = NaN and -0.0 = 0.0, as in
columns.

Protocol: parquet-format VariantEncoding.md; PROTOCOL.md#variant-data-type
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import pyarrow as pa

from tailerd.rows.variant_encoding import (
    BAD_BYTES,
    VariantReader,
    bytes_at,
    signed_at,
    unsigned_at,
    variant_names,
)

_INTEGERS = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMALS = {8: 4, 9: 8, 10: 16}
_TIMES = {12: (b"T", 1000), 13: (b"N", 1000), 18: (b"T", 1), 19: (b"N", 1)}
_FIXED = {11: (b"D", 4), 17: (b"c", 8), 20: (b"u", 16)}
_SIZED = {15: b"b", 16: b"s"}
_CONSTANTS = {0: b"n", 1: b"t", 2: b"f"}


def canonical_variants(array: pa.StructArray) -> pa.Array:
    """Return `large_binary`: equal bytes for equal variants, null for null.

    Bytes that are not a valid variant are equal only to themselves; decoding them raises the error.
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
        return VariantReader(variant_names(metadata), value, _CANONICAL).read()
    except BAD_BYTES:
        return b"x" + _sized(metadata) + value


class _Canonical:
    """Maps values to canonical bytes, as a `VariantMaker`."""

    def primitive(self, data: bytes, kind: int, position: int) -> bytes:
        return _primitive(data, kind, position)

    def short_string(self, text: bytes) -> bytes:
        return b"s" + _sized(text)

    def object(self, members: Sequence[tuple[bytes, bytes]]) -> bytes:
        ordered = sorted(members)
        return b"o%d;" % len(ordered) + b"".join(_sized(name) + made for name, made in ordered)

    def array(self, items: Sequence[bytes]) -> bytes:
        return b"a%d;" % len(items) + b"".join(items)


_CANONICAL = _Canonical()


def _primitive(data: bytes, kind: int, position: int) -> bytes:
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in _INTEGERS:
        return _exact(signed_at(data, position, _INTEGERS[kind]), 0)
    if kind in _DECIMALS:
        scale = unsigned_at(data, position, 1)
        return _exact(signed_at(data, position + 1, _DECIMALS[kind]), scale)
    if kind in _TIMES:
        tag, factor = _TIMES[kind]
        return tag + b"%d;" % (signed_at(data, position, 8) * factor)
    if kind in _FIXED:
        tag, width = _FIXED[kind]
        return tag + bytes_at(data, position, width)
    if kind in _SIZED:
        length = unsigned_at(data, position, 4)
        return _SIZED[kind] + _sized(bytes_at(data, position + 4, length))
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
    [number] = struct.unpack(form, bytes_at(data, position, width))
    return struct.pack(form, math.nan if math.isnan(number) else number + 0.0)


def _sized(data: bytes) -> bytes:
    return b"%d:" % len(data) + data
