"""Decode delivered records to added and removed rows, in a canonical encoding.

The inverse of value formats whose values are JSON, to compare deliveries with the table. Rows are
compared by their current columns: a dropped column is ignored; null and not yet added are equal.
Values that were encoded differently before a column was widened are made equal. The same applies
inside structs, lists and maps; a null struct differs from a struct of nulls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tailerd.errors import SinkError
from tailerd.records.base import Change
from tailerd.records.json_columns import is_any_list, is_variant

_MIDNIGHT = "T00:00:00.000000"
_LENGTH_OF_DATE = 10
_LARGEST_FLOAT = float(np.finfo(np.float32).max)

Spelling = Callable[[Any], Any]


class _Number(float):
    """A number with a fraction or exponent, with its text: a decimal may have more digits."""

    def __init__(self, text: str) -> None:
        if math.isinf(self):
            raise msgspec.DecodeError(f"the number {text} is out of range")
        self.text = text


class _TextNeeded(Exception):  # noqa: N818 - it is no error
    """A decimal was decoded as a double, so its text is needed."""


_ENCODER = msgspec.json.Encoder(order="sorted", enc_hook=float)
_DOUBLES: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_TEXTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_Number)


@dataclass(slots=True)
class RowReader:
    """Reads records of one table.

    Attributes:
        schema: The table's current columns, as Arrow.
        format: Name of the value format, for errors.
        changes_in: That format's `ReadsBack.changes_in`.
        widened: Columns in which floats were widened to doubles: earlier deliveries have fewer
            digits of the same number.
        empty_is_null: Whether an empty list or map is equal to a null one.
        foreign: Columns found that the table does not have now.
    """

    schema: pa.Schema
    format: str
    changes_in: Callable[[Mapping[str, Any]], Iterator[Change]]
    widened: Set[str] = frozenset()
    empty_is_null: bool = False
    foreign: set[str] = field(default_factory=set)
    _spell: Spelling = field(init=False)
    _decoder: msgspec.json.Decoder[Any] = field(init=False, default=_DOUBLES)

    def __post_init__(self) -> None:
        columns = {
            column.name: _spelling(column, column.name, self, column.name in self.widened)
            for column in self.schema
        }
        self._spell = partial(_plain_struct, columns, "", self.foreign)

    def read(self, values: Sequence[bytes]) -> tuple[list[bytes], list[int], list[int]]:
        """Return the rows of records: their JSON texts, signs and commit versions.

        Raises:
            SinkError: A record has another format.
        """
        rows: list[bytes] = []
        signs: list[int] = []
        versions: list[int] = []
        for value in values:
            try:
                for sign, row, version in self._changes(value):
                    rows.append(row)
                    signs.append(sign)
                    versions.append(version)
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
                raise SinkError(
                    f"A record is not a {self.format} change: {value[:80]!r} ({error!r})."
                    " Another program writes to the same location.",
                    remedy="Verify a location that only this pipeline writes to.",
                ) from error
        return rows, signs, versions

    def _changes(self, value: bytes) -> list[tuple[int, bytes, int]]:
        try:
            return self._spell_value(value)
        except _TextNeeded:
            # Keeping texts is slower, so it starts with the first decimal written as a number. A
            # sink that writes decimals as strings now may have written numbers before.
            self._decoder = _TEXTS
            return self._spell_value(value)

    def _spell_value(self, value: bytes) -> list[tuple[int, bytes, int]]:
        changes: list[tuple[int, bytes, int]] = []
        for sign, row, version in self.changes_in(self._decoder.decode(value)):
            if not isinstance(row, dict):
                raise TypeError("a row is not an object")
            changes.append((sign, _ENCODER.encode(self._spell(row)), version))
        return changes


def _spelling(column: pa.Field, path: str, reader: RowReader, is_widened: bool) -> Spelling:
    """Return a function that converts values of a column, at any depth, to canonical form.

    A value of another type, from before the table was replaced, is unchanged.
    """
    kind = column.type
    if is_variant(column):
        return _plain_variant
    if pa.types.is_decimal(kind):
        return _plain_decimal
    if pa.types.is_floating(kind):
        return _plain_float if is_widened else _plain_number
    if pa.types.is_timestamp(kind):
        return _plain_timestamp
    if pa.types.is_struct(kind):
        fields = {
            child.name: _spelling(child, f"{path}.{child.name}", reader, is_widened)
            for child in kind
        }
        return partial(_plain_struct, fields, f"{path}.", reader.foreign)
    if pa.types.is_map(kind):
        key = _spelling(kind.key_field, f"{path}.key", reader, is_widened)
        item = _spelling(kind.item_field, f"{path}.value", reader, is_widened)
        spelling = partial(_plain_map, partial(_plain_key, key, kind.key_type), item)
        return partial(_null_if_empty, spelling) if reader.empty_is_null else spelling
    if is_any_list(kind):
        item = _spelling(kind.value_field, f"{path}.element", reader, is_widened)
        spelling = partial(_plain_list, item)
        return partial(_null_if_empty, spelling) if reader.empty_is_null else spelling
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _plain_variant(value: Any) -> Any:
    """Normalise numbers of a variant at any depth: 1, 1.00 and 1e0 are equal."""
    if isinstance(value, dict):
        return {name: _plain_variant(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain_variant(each) for each in value]
    return _plain_number(value)


def _plain_struct(fields: Mapping[str, Spelling], path: str, foreign: set[str], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, inner in value.items():
        if inner is None:
            continue
        spelling = fields.get(name)
        if spelling is None:
            foreign.add(path + name)
        elif (spelled := spelling(inner)) is not None:
            kept[name] = spelled
    return kept


def _null_if_empty(spelling: Spelling, value: Any) -> Any:
    return None if value in ([], {}) else spelling(value)


def _plain_list(spelling: Spelling, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [None if each is None else spelling(each) for each in value]


def _plain_map(key: Spelling, item: Spelling, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key(k): None if v is None else item(v) for k, v in value.items()}


def _plain_key(spelling: Spelling, kind: pa.DataType, value: str) -> str:
    """Return a map's key in canonical form; in JSON it is a string for every type."""
    if pa.types.is_nested(kind):
        return value
    if not pa.types.is_floating(kind):
        return str(spelling(value))
    try:
        number = float(value)
    except ValueError:
        return value
    return str(spelling(number)) if math.isfinite(number) else value


def _plain_decimal(value: Any) -> Any:
    if type(value) is float:
        raise _TextNeeded
    try:
        number = Decimal(value.text if isinstance(value, _Number) else value)
    except (InvalidOperation, TypeError, ValueError):
        return value
    if not number.is_finite():
        return value
    # Not by arithmetic, which rounds: the widest decimal has 76 digits.
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if number == 0 else text


def _plain_number(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    # A plain float: the encoder calls `enc_hook` for a subclass.
    return int(value) if value.is_integer() else float(value)


def _plain_float(value: Any) -> Any:
    """Convert a double to the float it was before its column was widened.

    A value with more digits than a float can represent is unchanged.
    """
    if isinstance(value, float) and abs(value) <= _LARGEST_FLOAT:
        single = np.float32(value)
        shortest = float(str(single))
        if value in (shortest, float(single)):
            value = shortest
    return _plain_number(value)


def _plain_timestamp(value: Any) -> Any:
    is_date = isinstance(value, str) and "T" not in value and len(value) >= _LENGTH_OF_DATE
    return value + _MIDNIGHT if is_date else value
