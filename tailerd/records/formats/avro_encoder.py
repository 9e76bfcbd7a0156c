"""Encode whole columns in Avro's binary encoding.

Protocol: Avro 1.12 specification, "Binary Encoding"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailerd.records.binary.byte_pieces import (
    Mask,
    Numbers,
    all_masked,
    fixed_bytes,
    joined_runs,
    mask_piece,
    read_numbers,
    text_bytes,
    valid_rows,
)
from tailerd.records.binary.row_columns import (
    Column,
    ConstantColumn,
    EncodedRows,
    plain_values,
    take_piece,
    unexpected_null,
)
from tailerd.records.binary.special_values import (
    convert_to_micros,
    decimal_bytes,
    read_float_bits,
    uuid_texts,
    wide_decimals,
)
from tailerd.records.binary.varints import zigzag_varints
from tailerd.records.byte_rows import ConstantBytes, Piece
from tailerd.records.json_columns import column_texts, list_parts, map_parts
from tailerd.records.schemas.avro_schema import UINT64_DIGITS, is_union
from tailerd.records.schemas.column_kind import (
    Kind,
    choose_kind,
    is_wide_unsigned,
    stored_type,
    unsupported_error,
)
from tailerd.records.schemas.record_shape import RecordShape
from tailerd.records.short_bytes import ShortBytes, varint

_IS_NULL, _IS_VALUE = b"\x00", b"\x02"
_END = b"\x00"


@dataclass(frozen=True, slots=True)
class _Value:
    """How a column or item is encoded; computed once per schema."""

    field: pa.Field
    kind: Kind
    is_union: bool
    children: tuple[_Value, ...]


def _plan_value(field: pa.Field) -> _Value:
    kind, stored = choose_kind(field), stored_type(field.type)
    children: tuple[pa.Field, ...] = ()
    if kind is Kind.STRUCT:
        children = tuple(stored)
    elif kind is Kind.LIST:
        children = (stored.value_field,)
    elif kind is Kind.MAP:
        children = (stored.key_field, stored.item_field)
    return _Value(field, kind, is_union(field), tuple(map(_plan_value, children)))


class AvroEncoder:
    """Encodes records of a shape according to its `avro_schema`."""

    def __init__(self, shape: RecordShape) -> None:
        self._values = tuple(map(_plan_value, shape.fields))

    def pieces(self, columns: Sequence[Column], count: int) -> list[Piece]:
        """Return the pieces of each record; see `RecordEncoder`."""
        pieces: list[Piece] = []
        for column, value in zip(columns, self._values, strict=True):
            match column:
                case EncodedRows():
                    pieces += _embed_value(column, value)
                case ConstantColumn():
                    pieces.append(_constant(column.value, value))
                case _:
                    pieces += _optional(column, value)
        return pieces


def _constant(constant: str | int, value: _Value) -> ConstantBytes:
    branch = _IS_VALUE if value.is_union else b""
    if isinstance(constant, int):
        return ConstantBytes(branch + varint(constant))
    raw = constant.encode()
    return ConstantBytes(branch + varint(len(raw)) + raw)


def _embed_value(column: EncodedRows, value: _Value) -> list[Piece]:
    body = column.body
    if body is None:
        return [ConstantBytes(_IS_NULL)]
    if not value.is_union:
        return [body]
    if isinstance(body, ConstantBytes) or body.nulls is None:
        return [ConstantBytes(_IS_VALUE), body]
    return [_union_index(~body.nulls), body]


def _union_index(valid: Mask) -> ShortBytes:
    return fixed_bytes(valid.astype(np.uint64) << np.uint64(1), 1)


def _optional(array: pa.Array, value: _Value) -> list[Piece]:
    """Return the encoded values, each after its branch index if the field is a union."""
    if value.kind is Kind.NULL:
        return []
    array = plain_values(array)
    valid = valid_rows(array)
    if valid is not None and not valid.any() and value.is_union:
        return [ConstantBytes(_IS_NULL)]
    if pa.types.is_dictionary(array.type):
        if array.dictionary.null_count or len(array.dictionary) > len(array):
            return _optional(array.dictionary_decode(), value)
        values = plain_values(array.dictionary)
        pieces = [take_piece(piece, array.indices) for piece in _pieces(values, value)]
    else:
        pieces = _pieces(array, value)
    if not value.is_union:
        if valid is not None:
            raise unexpected_null(value.field)
        return pieces
    if valid is None:
        return [ConstantBytes(_IS_VALUE), *pieces]
    return [_union_index(valid), *all_masked(pieces, valid)]


def _pieces(array: pa.Array, value: _Value) -> list[Piece]:
    """Return the encoded values; the caller masks nulls."""
    match value.kind:
        case Kind.STRUCT:
            # `field` applies the slice of the parent, but not its nulls.
            return [
                piece
                for at, child in enumerate(value.children)
                for piece in _child(array, array.field(at), child)
            ]
        case Kind.LIST:
            offsets, items = list_parts(array)
            return _blocks(offsets, _optional(items, value.children[0]), len(items))
        case Kind.MAP:
            offsets, keys, values = map_parts(array)
            key, item = value.children
            return _blocks(offsets, [*_optional(keys, key), *_optional(values, item)], len(keys))
        case Kind.VARIANT:
            array = column_texts(array, value.field, quote_decimals=False).array
    return _scalar(array, value)


def _child(parent: pa.Array, array: pa.Array, value: _Value) -> list[Piece]:
    if parent.null_count and not value.is_union and array.null_count:
        # A required value may be null only if its parent is null.
        if (array.is_null().to_numpy(False) & parent.is_valid().to_numpy(False)).any():
            raise unexpected_null(value.field)
        return _pieces(plain_values(array), value)
    return _optional(array, value)


def _blocks(offsets: Numbers, items: Sequence[Piece], count: int) -> list[Piece]:
    """Return each list as one block: number of items, items, end marker."""
    lengths = np.diff(offsets)
    numbers = mask_piece(zigzag_varints(lengths), lengths > 0)
    return [numbers, joined_runs(items, count, offsets), ConstantBytes(_END)]


def _scalar(array: pa.Array, value: _Value) -> list[Piece]:
    match value.kind:
        case Kind.STRING | Kind.BINARY | Kind.VARIANT:
            return _with_length(text_bytes(array))
        case Kind.INTEGER if is_wide_unsigned(array.type):
            return _with_length(decimal_bytes(array.cast(pa.decimal128(UINT64_DIGITS))))
        case Kind.INTEGER:
            return [zigzag_varints(read_numbers(array))]
        case Kind.DOUBLE:
            return [fixed_bytes(read_float_bits(array), 8)]
        case Kind.FLOAT:
            return [fixed_bytes(read_float_bits(array.cast(pa.float32())), 4)]
        case Kind.BOOLEAN:
            return [fixed_bytes(read_numbers(array.cast(pa.uint8())).view(np.uint64), 1)]
        case Kind.TIMESTAMP | Kind.TIME:
            return [zigzag_varints(convert_to_micros(array, value.field.name))]
        case Kind.DATE:
            return [zigzag_varints(read_numbers(array.cast(pa.date32())))]
        case Kind.DECIMAL:
            return _with_length(decimal_bytes(wide_decimals(array)))
        case Kind.UUID:
            return _with_length(text_bytes(uuid_texts(array)))
    raise unsupported_error(value.field)


def _with_length(texts: Piece) -> list[Piece]:
    if isinstance(texts, ConstantBytes):
        return [texts]
    sizes = texts.sizes if isinstance(texts, ShortBytes) else texts.lengths
    return [zigzag_varints(sizes), texts]
