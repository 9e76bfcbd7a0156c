"""Decode Protobuf values to the JSON of the JSON formats, to compare delivered rows. Pure.

The inverse of `schemas.protobuf_schema`: the table's column names, dates and timestamps as strings,
decimals as strings of digits, maps with non-string keys as objects. Messages for a list, a map's
entry or an item are recognised by name. Under `repeated`, a null list or map is decoded as an empty
one, because the encoding does not distinguish them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tailerd.records.decoded_values import (
    Value,
    as_it_is,
    decimal_text,
    double_value,
    float_value,
    key_text,
)
from tailerd.records.json_text import (
    MICROS_PER_DAY,
    MICROS_PER_SECOND,
    count_days,
    date_text,
    time_text,
    timestamp_text,
)
from tailerd.records.schemas.protobuf_parser import ParsedField, ParsedMessage
from tailerd.records.schemas.protobuf_schema import type_name

Messages = Mapping[str, ParsedMessage]
_KEY, _VALUE = 1, 2


def json_value(name: str, messages: Messages) -> Value:
    """Return a function that converts decoded messages to JSON types.

    Args:
        name: Full name of the message; the official library decodes it, with presence of every
            field that is not `repeated`.
        messages: The schema's messages, by full name.
    """
    fields = [(each.number, each.column, _field(each, messages)) for each in messages[name].fields]

    def record(found: Any) -> dict[str, Any]:
        present = _present(found)
        return {column: value(present.get(number)) for number, column, value in fields}

    return record


def _present(found: Any) -> dict[int, Any]:
    return {described.number: value for described, value in found.ListFields()}


def _field(field: ParsedField, messages: Messages) -> Value:
    if field.label == "optional":
        return _or_null(_one(field, messages))
    if field.label == "map":
        item = _one(field, messages)
        return lambda found: {key_text(key): item(each) for key, each in (found or {}).items()}
    if _is_named(field, "Entry"):
        key, value = (_field(each, messages) for each in _inner(field, messages))
        return lambda found: dict(_entry(_present(each), key, value) for each in found or ())
    item = _one(field, messages)
    return lambda found: [item(each) for each in found or ()]


def _entry(present: Mapping[int, Any], key: Value, value: Value) -> tuple[str, Any]:
    return key_text(key(present.get(_KEY))), value(present.get(_VALUE))


def _or_null(value: Value) -> Value:
    return lambda found: None if found is None else value(found)


def _one(field: ParsedField, messages: Messages) -> Value:
    """Return the conversion of one value of a field."""
    if field.is_variant:
        return lambda found: msgspec.Raw(found.encode())
    if field.type not in messages:
        return _PLAIN.get(field.type, as_it_is)
    if any(_is_named(field, content) for content in ("List", "Map", "Item")):
        [held] = _inner(field, messages)
        value, number = _field(held, messages), held.number
        return lambda found: value(_present(found).get(number))
    return json_value(field.type, messages)


def _inner(field: ParsedField, messages: Messages) -> list[ParsedField]:
    return messages[field.type].fields


def _is_named(field: ParsedField, content: str) -> bool:
    """Return whether the name of a field's message is one for this content."""
    requested = re.escape(type_name(field.name) + content)
    return re.fullmatch(rf"{requested}\d*", field.type.rpartition(".")[2]) is not None


def _days(found: Any) -> int:
    return count_days(found.year, found.month, found.day)


def _clock(found: Any) -> int:
    seconds = (found.hours * 60 + found.minutes) * 60 + found.seconds
    return int(seconds * MICROS_PER_SECOND + found.nanos // 1000)


def _instant(found: Any) -> str:
    return timestamp_text(found.seconds * MICROS_PER_SECOND + found.nanos // 1000)


def _naive(found: Any) -> str:
    return timestamp_text(_days(found) * MICROS_PER_DAY + _clock(found), is_utc=False)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "bytes": lambda found: b64encode(found).decode(),
    "float": float_value,
    "double": double_value,
    "confluent.type.Decimal": lambda found: decimal_text(found.value, found.scale),
    "google.type.Date": lambda found: date_text(_days(found)),
    "google.type.TimeOfDay": lambda found: time_text(_clock(found)),
    "google.type.DateTime": _naive,
    "google.protobuf.Timestamp": _instant,
}
