"""Compares and casts Arrow values of different types, as conditions do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

UTC = pa.timestamp("us", tz="UTC")
_ZONE = r"(?i)(?:z|[+-]\d\d:?\d\d|[+-]\d\d)$"


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are texts, or all null."""
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    return any(check(kind) for check in checks)


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type, for errors."""
    return "text" if is_text(kind) else str(kind)


def plain_layout(values: pa.Array) -> pa.Array:
    """Return values without dictionary or view, as all functions of Arrow take them."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return plain_layout(values.dictionary_decode())
    if pa.types.is_string_view(kind):
        return values.cast(pa.string())
    return values.cast(pa.binary()) if pa.types.is_binary_view(kind) else values


def plain_text(value: Any) -> Any:
    """Return texts; nulls without a type become texts."""
    return value.cast(pa.string()) if pa.types.is_null(value.type) else value


def like_regex(pattern: str, escape: str) -> str:
    """Return the regular expression of a pattern for LIKE."""
    pieces, characters = ["(?s)\\A"], iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, escape)
            pieces.append(_quote(character))
        else:
            pieces.append({"%": ".*", "_": "."}.get(character) or _quote(character))
    return "".join([*pieces, "\\z"])


def _quote(character: str) -> str:
    is_plain = character.isalnum() or not character.isascii()
    return character if is_plain else f"\\x{{{ord(character):x}}}"


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether values are integers, floats or decimals."""
    return bool(_is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type with the values of both; None if they cannot be compared."""
    if pa.types.is_null(one) or pa.types.is_null(other):
        known = other if pa.types.is_null(one) else one
        return pa.int64() if pa.types.is_null(known) else common_type(known, known)
    if is_number(one) and is_number(other):
        return _common_number(one, other)
    if is_text(one) and is_text(other):
        return pa.large_string() if pa.types.is_large_string(one) else other
    kinds = one, other
    if all(map(pa.types.is_date, kinds)):
        return pa.date32() if pa.types.is_date32(one) and pa.types.is_date32(other) else UTC
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in kinds):
        times = [kind for kind in kinds if pa.types.is_timestamp(kind)]
        if len({kind.tz is None for kind in times}) > 1:
            return None
        unit = max((kind.unit for kind in times), key=["s", "ms", "us", "ns"].index)
        return pa.timestamp(unit, None if times[0].tz is None else "UTC")
    if all(map(_is_binary, kinds)):
        return pa.large_binary()
    if one == other and not pa.types.is_nested(one):
        return one
    return None


def _is_binary(kind: pa.DataType) -> bool:
    is_fixed = pa.types.is_fixed_size_binary(kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_fixed)


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        return pa.float64()
    if _is_integer(one) and _is_integer(other) and pa.uint64() not in (one, other):
        return pa.int64()
    kinds = [_decimal(kind) for kind in (one, other)]
    scale = max(kind.scale for kind in kinds)
    digits = max(kind.precision - kind.scale for kind in kinds)
    is_small = digits + scale <= 38
    return (pa.decimal128 if is_small else pa.decimal256)(digits + scale, scale)


def _decimal(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(20, 0) if _is_integer(kind) else kind


def as_type(value: Any, kind: pa.DataType) -> Any:
    """Return values in their `common_type`."""
    if value.type == kind:
        return value
    if pa.types.is_decimal(kind) and pa.types.is_integer(value.type):
        value = value.cast(pa.decimal128(20, 0))
    return value.cast(kind)


def compare_values(how: str, one: Any, other: Any) -> Any:
    """Compare values of one type; NaN is the greatest number and equals itself."""
    found = pc.call_function(how, [one, other])
    if not pa.types.is_floating(one.type):
        return found
    nan, other_nan = pc.is_nan(one), pc.is_nan(other)
    either = pc.or_(nan, other_nan)
    if isinstance(either, pa.Array) and not pc.any(either).as_py():
        return found
    # As numbers: 1 for NaN, 0 for any other.
    ranks = [each.cast(pa.int8()) for each in (nan, other_nan)]
    return pc.if_else(either, pc.call_function(how, ranks), found)


def cast_or_null(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return values of another type; those that it does not have become null.

    Raises:
        pyarrow.ArrowNotImplementedError: There is no such conversion.
    """
    if pa.types.is_timestamp(target) and is_text(values.type):
        values = _with_zone(values, is_zoned=target.tz is not None)
    if pa.types.is_floating(values.type) and pa.types.is_integer(target):
        values = pc.trunc(values)
    if pa.types.is_timestamp(values.type) and pa.types.is_date(target):
        values = pc.floor_temporal(values, unit="day")
    if pa.types.is_decimal(target) and pa.types.is_integer(values.type):
        values = values.cast(pa.decimal128(20, 0))
    try:
        return values.cast(target)
    except pa.ArrowInvalid:
        pass
    # Some value does not fit: each distinct one by itself.
    codes = values.dictionary_encode()
    found = [_cast_one(value, target) for value in codes.dictionary]
    return pa.array(found, target).take(codes.indices)


def _cast_one(value: pa.Scalar, target: pa.DataType) -> Any:
    try:
        return value.cast(target)
    except pa.ArrowInvalid:
        return None


def _with_zone(texts: pa.Array, *, is_zoned: bool) -> pa.Array:
    """Return texts of times that all have a zone, or none."""
    texts = plain_text(texts)
    has_zone = pc.match_substring_regex(texts, r"\d" + _ZONE)
    has_zone = pc.and_(has_zone, pc.match_substring_regex(texts, r":.*" + _ZONE))
    if is_zoned:
        return pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return pc.if_else(has_zone, pa.scalar(None, texts.type), texts)
