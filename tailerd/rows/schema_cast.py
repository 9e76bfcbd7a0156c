"""Casts rows of an older schema to a newer one, if that loses nothing but dropped columns.

Used to compare rows across a schema change: an added column is null, a widened value equals the
original. If a type changed in another way, the old rows cannot be compared with the new ones: they
are deletes, and the new ones inserts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import FIELD_ID
from tailerd.rows.hashing import find_nulls, is_variant


class MatchColumns(enum.Enum):
    """How a column of the newer schema is found in the older one."""

    BY_NAME = enum.auto()
    BY_FIELD_ID = enum.auto()
    """By `FIELD_ID` in the metadata of fields at every depth; by name if the newer has none."""


class _NotCastableError(Exception):
    """A type changed in another way than by widening."""


_Convert = Callable[[pa.Array], pa.Array]
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT_IN_DOUBLE = 32


@dataclass(frozen=True, slots=True)
class SchemaCast:
    """Casts rows from one schema to another; create it with `schema_cast`.

    Attributes:
        schema: The newer schema.
    """

    schema: pa.Schema
    _columns: tuple[tuple[int | None, _Convert], ...]

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return rows in the newer schema; None if a value is out of its range."""
        try:
            columns = [
                pa.nulls(rows.num_rows, field.type)
                if position is None
                else convert(rows.column(position))
                for field, (position, convert) in zip(self.schema, self._columns, strict=True)
            ]
        except pa.ArrowInvalid:
            return None
        if not columns:
            return rows.select([])
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def schema_cast(old: pa.Schema, new: pa.Schema, match: MatchColumns) -> SchemaCast | None:
    """Return the cast of rows from `old` to `new`; None: they cannot be compared.

    Widenings: integers to wider integers, and to doubles or decimals that hold all their values;
    floats to doubles; decimals to those with as many or more digits on both sides of the point;
    dates to timestamps without a zone. The same applies to fields of structs, elements of lists,
    keys and values of maps. A column or field missing in `new` is left out, one missing in `old` is
    null.
    """
    try:
        return SchemaCast(new, tuple(_columns(list(old), list(new), match)))
    except _NotCastableError:
        return None


def _columns(
    old: list[pa.Field], new: list[pa.Field], match: MatchColumns
) -> Iterable[tuple[int | None, _Convert]]:
    names = {field.name: position for position, field in enumerate(old)}
    ids = {_field_id(field): position for position, field in enumerate(old)}
    for field in new:
        number = _field_id(field)
        by_id = match is MatchColumns.BY_FIELD_ID and number is not None
        position = ids.get(number) if by_id else names.get(field.name)
        yield (
            position,
            _keep_array if position is None else _conversion(old[position], field, match),
        )


def _field_id(field: pa.Field) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return found


def _keep_array(array: pa.Array) -> pa.Array:
    return array


def _conversion(old: pa.Field, new: pa.Field, match: MatchColumns) -> _Convert:
    source, target = old.type, new.type
    if is_variant(old) != is_variant(new):
        raise _NotCastableError
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _struct(source, target, match)
    if pa.types.is_list(source) and pa.types.is_list(target):
        return _list(target, _conversion(source.value_field, target.value_field, match))
    if pa.types.is_map(source) and pa.types.is_map(target):
        key = _conversion(source.key_field, target.key_field, match)
        return _map(target, key, _conversion(source.item_field, target.item_field, match))
    if source == target:
        return _keep_array
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if not is_widened(source, target):
        raise _NotCastableError
    return lambda array: array.cast(target)


def is_widened(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of a type are values of another one too; see `schema_cast`."""
    types = pa.types
    if types.is_integer(source) and types.is_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if types.is_integer(source) and types.is_float64(target):
        return bool(source.bit_width <= _EXACT_IN_DOUBLE)
    if types.is_integer(source) and types.is_decimal(target):
        return bool(target.precision - target.scale >= _INTEGER_DIGITS[source.bit_width])
    if types.is_decimal(source) and types.is_decimal(target):
        more = target.scale - source.scale
        return bool(more >= 0 and target.precision - source.precision >= more)
    if types.is_date(source):
        return bool(types.is_timestamp(target) and target.tz is None)
    return bool(types.is_float32(source) and types.is_float64(target))


def _struct(source: pa.StructType, target: pa.StructType, match: MatchColumns) -> _Convert:
    columns = list(_columns(list(source), list(target), match))

    def convert(array: pa.Array) -> pa.Array:
        if not columns:
            return pa.array([{}] * len(array), target, mask=find_nulls(array))
        values = array.flatten()
        parts = [
            pa.nulls(len(array), field.type) if position is None else each(values[position])
            for field, (position, each) in zip(target, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=_mask(array))

    return convert


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _list(target: pa.ListType, element: _Convert) -> _Convert:
    def convert(array: pa.Array) -> pa.Array:
        offsets, start, length = _offsets(array)
        values = element(array.values.slice(start, length))
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=_mask(array))

    return convert


def _map(target: pa.MapType, key: _Convert, item: _Convert) -> _Convert:
    def convert(array: pa.Array) -> pa.Array:
        offsets, start, length = _offsets(array)
        keys = key(array.keys.slice(start, length))
        items = item(array.items.slice(start, length))
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=_mask(array))

    return convert


def _offsets(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the offsets of lists, starting at 0, and the start and length of their elements."""
    if not len(array):
        return pa.array([0], pa.int32()), 0, 0
    offsets = array.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    return pa.array((offsets - start).astype(np.int32)), start, end - start
