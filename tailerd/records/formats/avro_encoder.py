"""Avro's binary encoding of whole columns.

Protocol: Avro 1.12 specification, "Binary Encoding"
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tailerd.encoding.byte_rows import ConstantBytes, Piece
from tailerd.encoding.json_columns import column_texts, list_parts, map_parts
from tailerd.encoding.short_bytes import ShortBytes
from tailerd.errors import TableError
from tailerd.records.binary.byte_pieces import (
    all_masked,
    fixed_bytes,
    joined_runs,
    masked,
    numbers_of,
    text_bytes,
    valid_rows,
)
from tailerd.records.binary.row_columns import (
    Column,
    ConstantColumn,
    EncodedRows,
    one_row,
    plain_values,
    taken,
    unexpected_null,
)
from tailerd.records.binary.special_values import (
    decimal_bytes,
    micros_of,
    uuid_texts,
    wide_decimals,
    words_of_floats,
)
from tailerd.records.binary.varints import zigzag_varints
from tailerd.records.schemas.avro_schema import UINT64_DIGITS, is_union
from tailerd.records.schemas.column_kind import Kind, is_wide_unsigned, kind_of, unsupported
from tailerd.records.schemas.record_shape import RecordShape

_IS_NULL, _IS_VALUE = b"\x00", b"\x02"
_END = b"\x00"


class AvroEncoder:
    """Writes records of a shape as its `avro_schema` says."""

    def __init__(self, shape: RecordShape) -> None:
        self._fields = shape.fields

    def pieces(self, columns: Sequence[Column], count: int) -> list[Piece]:
        """Return the pieces of each record; see `RecordEncoder`."""
        pieces: list[Piece] = []
        for column, field in zip(columns, self._fields, strict=True):
            match column:
                case EncodedRows():
                    pieces += _embedded(column, field)
                case ConstantColumn():
                    pieces.append(one_row(_optional(column.value, field)))
                case _:
                    pieces += _optional(column, field)
        return pieces


def _embedded(column: EncodedRows, field: pa.Field) -> list[Piece]:
    body = column.body
    if body is None:
        return [ConstantBytes(_IS_NULL)]
    if not is_union(field):
        return [body]
    if isinstance(body, ConstantBytes) or body.nulls is None:
        return [ConstantBytes(_IS_VALUE), body]
    return [_union_index(~body.nulls), body]


def _union_index(valid: np.ndarray) -> ShortBytes:
    return fixed_bytes(valid.astype(np.uint64) << np.uint64(1), 1)


def _optional(array: pa.Array, field: pa.Field) -> list[Piece]:
    """Return a value, after the index of its branch where the field is a union."""
    if kind_of(field) is Kind.NULL:
        return []
    if pa.types.is_dictionary(array.type):
        return _from_dictionary(array, field)
    valid = valid_rows(array)
    if not is_union(field):
        if valid is not None:
            raise unexpected_null(field)
        return _value(array, field)
    if valid is None:
        return [ConstantBytes(_IS_VALUE), *_value(array, field)]
    if not valid.any():
        return [ConstantBytes(_IS_NULL)]
    return [_union_index(valid), *all_masked(_value(array, field), valid)]


def _from_dictionary(array: pa.Array, field: pa.Field) -> list[Piece]:
    if array.dictionary.null_count or len(array.dictionary) > len(array):
        return _optional(array.dictionary_decode(), field)
    values = [taken(piece, array.indices) for piece in _value(array.dictionary, field)]
    valid = valid_rows(array)
    if not is_union(field):
        if valid is not None:
            raise unexpected_null(field)
        return values
    if valid is None:
        return [ConstantBytes(_IS_VALUE), *values]
    return [_union_index(valid), *all_masked(values, valid)]


def _value(array: pa.Array, field: pa.Field) -> list[Piece]:
    """Return the bytes of values; what stands for a null is left to the caller."""
    kind, array = kind_of(field), plain_values(array)
    match kind:
        case Kind.STRUCT:
            children = zip(range(array.type.num_fields), array.type, strict=True)
            # `field` applies the slice of the parent, but not its nulls.
            return [
                piece for at, child in children for piece in _child(array, array.field(at), child)
            ]
        case Kind.LIST:
            offsets, items = list_parts(array)
            return _blocks(offsets, _optional(items, array.type.value_field), len(items))
        case Kind.MAP:
            offsets, keys, values = map_parts(array)
            key, value = array.type.key_field, array.type.item_field
            pieces = [*_optional(keys, key), *_optional(values, value)]
            return _blocks(offsets, pieces, len(keys))
        case Kind.VARIANT:
            array = column_texts(array, field, quote_decimals=False).array
    return _scalar(array, field, kind)


def _child(parent: pa.Array, array: pa.Array, field: pa.Field) -> list[Piece]:
    if parent.null_count and not is_union(field) and array.null_count:
        # Under a parent that is null a value may be missing that must not be otherwise.
        if (array.is_null().to_numpy(False) & parent.is_valid().to_numpy(False)).any():
            raise unexpected_null(field)
        return _value(array, field)
    return _optional(array, field)


def _blocks(offsets: np.ndarray, items: Sequence[Piece], count: int) -> list[Piece]:
    """Return each list as one block of all its items, after their number, and the end."""
    lengths = np.diff(offsets)
    numbers = masked(zigzag_varints(lengths), lengths > 0)
    return [numbers, joined_runs(items, count, offsets), ConstantBytes(_END)]


def _scalar(array: pa.Array, field: pa.Field, kind: Kind) -> list[Piece]:
    match kind:
        case Kind.STRING | Kind.BINARY | Kind.VARIANT:
            return _with_length(text_bytes(array))
        case Kind.INTEGER if is_wide_unsigned(array.type):
            return _with_length(decimal_bytes(array.cast(pa.decimal128(UINT64_DIGITS))))
        case Kind.INTEGER:
            return [zigzag_varints(numbers_of(array))]
        case Kind.DOUBLE:
            return [fixed_bytes(words_of_floats(array), 8)]
        case Kind.FLOAT:
            return [fixed_bytes(words_of_floats(array.cast(pa.float32())), 4)]
        case Kind.BOOLEAN:
            return [fixed_bytes(numbers_of(array.cast(pa.uint8())).view(np.uint64), 1)]
        case Kind.TIMESTAMP | Kind.TIME:
            return [zigzag_varints(_micros(array, field))]
        case Kind.DATE:
            return [zigzag_varints(numbers_of(array.cast(pa.date32())))]
        case Kind.DECIMAL:
            return _with_length(decimal_bytes(wide_decimals(array)))
        case Kind.UUID:
            return _with_length(text_bytes(uuid_texts(array)))
    raise unsupported(field)


def _micros(array: pa.Array, field: pa.Field) -> np.ndarray:
    try:
        return micros_of(array)
    except OverflowError as error:
        raise TableError(
            f"Column {field.name!r} has a time that microseconds of 64 bits cannot say: {error}."
        ) from error


def _with_length(texts: Piece) -> list[Piece]:
    if isinstance(texts, ConstantBytes):
        return [texts]
    sizes = texts.sizes if isinstance(texts, ShortBytes) else texts.lengths
    return [zigzag_varints(sizes), texts]
