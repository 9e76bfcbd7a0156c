"""Encode whole columns as Protobuf.

As in the official libraries, fields are in the order of their numbers, map entries in the order of
the table, and fields without presence are omitted if they are zero.

Protocol: Protocol Buffers, "Encoding"
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.errors import TableError
from tailerd.records.binary.byte_pieces import (
    all_masked,
    fixed_bytes,
    joined_runs,
    read_numbers,
    sum_sizes,
    text_bytes,
    valid_rows,
)
from tailerd.records.binary.row_columns import (
    Column,
    ConstantColumn,
    EncodedRows,
    plain_values,
    take_piece,
)
from tailerd.records.binary.special_values import (
    MICROS_PER_SECOND,
    calendar_days,
    clock_parts,
    convert_to_micros,
    decimal_bytes,
    read_float_bits,
    seconds_and_nanos,
    uuid_texts,
    wide_decimals,
)
from tailerd.records.binary.varints import encode_varints, varint_bytes
from tailerd.records.byte_rows import ConstantBytes, Piece
from tailerd.records.json_columns import column_texts, list_parts, map_parts
from tailerd.records.schemas.column_kind import Kind
from tailerd.records.schemas.protobuf_schema import Message, MessageField, ValueType
from tailerd.remedies import LEAVE_OUT

Numbers = npt.NDArray[np.int64]

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {"double": _FIXED64, "float": _FIXED32, "string": _DELIMITED, "bytes": _DELIMITED}
_MICROS_PER_DAY = 86_400_000_000


class ProtobufEncoder:
    """Encodes rows as messages of one type."""

    def __init__(self, message: Message) -> None:
        self._fields = _by_number(message)

    def pieces(self, columns: Sequence[Column], count: int) -> list[Piece]:
        """Return the pieces of each message; see `RecordEncoder`."""
        pieces: list[Piece] = []
        for member in self._fields:
            match columns[member.index]:
                case EncodedRows() as rows:
                    pieces += _embed_message(rows, member, count)
                case ConstantColumn() as column:
                    pieces.append(_constant(column.value, member))
                case array:
                    pieces += _field(array, member)
        return pieces


def _by_number(message: Message) -> list[MessageField]:
    return sorted(message.fields, key=lambda member: member.number)


def _embed_message(rows: EncodedRows, member: MessageField, count: int) -> list[Piece]:
    body, tag = rows.body, _tag(member.number, _DELIMITED)
    if body is None:
        return []
    if isinstance(body, ConstantBytes):
        return [ConstantBytes(tag.raw + varint_bytes(len(body.raw)) + body.raw)]
    pieces = [tag, *_prefix_length([body], count)]
    return pieces if body.nulls is None else all_masked(pieces, ~body.nulls)


def _constant(constant: str | int, member: MessageField) -> ConstantBytes:
    tag = _tag(member.number, _wire_type(member.value)).raw
    if isinstance(constant, str):
        raw = constant.encode()
        return ConstantBytes(tag + varint_bytes(len(raw)) + raw)
    if member.value.kind is not Kind.TIMESTAMP:
        return ConstantBytes(tag + varint_bytes(constant % 2**64))
    seconds, micros = divmod(constant, MICROS_PER_SECOND)
    body = b""
    for number, part in ((1, seconds), (2, micros * 1000)):
        if part:
            body += _tag(number, _VARINT).raw + varint_bytes(part % 2**64)
    return ConstantBytes(tag + varint_bytes(len(body)) + body)


def _tag(number: int, wire_type: int) -> ConstantBytes:
    return ConstantBytes(varint_bytes(number << 3 | wire_type))


def _wire_type(value: ValueType) -> int:
    return _WIRE_TYPES.get(value.name, _VARINT) if value.is_scalar else _DELIMITED


def _field(array: pa.Array, member: MessageField) -> list[Piece]:
    """Return a field of each row; empty for null."""
    array = plain_values(array)
    if pa.types.is_dictionary(array.type):
        return _from_dictionary(array, member)
    valid = valid_rows(array)
    if valid is not None and not valid.any():
        return []
    if member.label == "optional":
        return all_masked(_tag_field(array, member.number, member.column, member.value), valid)
    return all_masked(_encode_repeated(array, member), valid)


def _from_dictionary(array: pa.Array, member: MessageField) -> list[Piece]:
    values = array.dictionary
    if values.null_count or not len(values) or len(values) > len(array):
        return _field(array.dictionary_decode(), member)
    pieces = [take_piece(piece, array.indices) for piece in _field(values, member)]
    return all_masked(pieces, valid_rows(array))


def _decode_values(array: pa.Array) -> pa.Array:
    """Return the values without dictionary or other encodings, so that nulls can be counted."""
    array = plain_values(array)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _tag_field(array: pa.Array, number: int, column: pa.Field, value: ValueType) -> list[Piece]:
    """Return one field of each row; the caller masks nulls."""
    array, tag = _decode_values(array), _tag(number, _wire_type(value))
    if value.is_scalar:
        return [tag, *_scalar(array, column, value.kind)]
    return [tag, *_prefix_length(_body(array, column, value), len(array))]


def _prefix_length(pieces: Sequence[Piece], count: int) -> list[Piece]:
    return [encode_varints(sum_sizes(pieces, count).view(np.uint64)), *pieces]


def _body(array: pa.Array, column: pa.Field, value: ValueType) -> list[Piece]:
    """Return the fields of each row's message."""
    message = value.message
    if message is None:
        return _well_known(array, value.kind, column.name)
    match message.content:
        case "collection":
            return _encode_repeated(array, message.fields[0])
        case "item":
            return _field(array, message.fields[0])
    # `field` applies the slice of the parent, but not its nulls.
    members = _by_number(message)
    return [piece for member in members for piece in _field(array.field(member.index), member)]


# ---------------------------------------------------------------- lists and maps


def _encode_repeated(array: pa.Array, member: MessageField) -> list[Piece]:
    """Return the items of each row's list or map, as one field each or packed."""
    if pa.types.is_map(array.type):
        return _entries(array, member)
    offsets, items = list_parts(array)
    items = _decode_values(items)
    item = array.type.value_field
    _check_items(array, offsets, items, item, member)
    if member.value.is_scalar and _wire_type(member.value) != _DELIMITED:
        return _pack_items(offsets, items, item, member)
    pieces = _tag_field(items, member.number, item, member.value)
    return [joined_runs(pieces, len(items), offsets)]


def _pack_items(
    offsets: Numbers, items: pa.Array, item: pa.Field, member: MessageField
) -> list[Piece]:
    scalars = _scalar(items, item, member.value.kind)
    body = joined_runs(scalars, len(items), offsets)
    pieces: list[Piece] = [_tag(member.number, _DELIMITED)]
    pieces += [encode_varints(body.lengths.view(np.uint64)), body]
    return all_masked(pieces, np.diff(offsets) > 0)


def _entries(array: pa.Array, member: MessageField) -> list[Piece]:
    offsets, keys, values = map_parts(array)
    kind, count, message = array.type, len(keys), member.value.message
    if member.key is not None:
        values = _decode_values(values)
        _check_items(array, offsets, values, kind.item_field, member)
        body = _tag_field(keys, 1, kind.key_field, member.key)
        body += _tag_field(values, 2, kind.item_field, member.value)
    else:
        fields = () if message is None else message.fields
        parts = zip(fields, (keys, values), strict=True)
        body = [piece for field, part in parts for piece in _field(part, field)]
    pieces = [_tag(member.number, _DELIMITED), *_prefix_length(body, count)]
    return [joined_runs(pieces, count, offsets)]


def _check_items(
    array: pa.Array, offsets: Numbers, items: pa.Array, item: pa.Field, member: MessageField
) -> None:
    """Reject null items if the field cannot represent them."""
    message = member.value.message
    if not items.null_count or (message is not None and message.content == "item"):
        return
    is_null = items.is_null().to_numpy(zero_copy_only=False)
    valid = valid_rows(array)
    if valid is not None:
        # Values under a null list are not items.
        is_null = is_null & np.repeat(valid, np.diff(offsets))
    if is_null.any():
        raise TableError(
            f"Column {member.column.name!r} has a null in a list or map, which `repeated` and `map`"
            " of Protobuf cannot hold.",
            remedy=f"Set `collections: wrapped`, or {LEAVE_OUT}.",
        )


# ---------------------------------------------------------------- values


def _scalar(array: pa.Array, column: pa.Field, kind: Kind) -> list[Piece]:
    match kind:
        case Kind.STRING | Kind.BINARY:
            return _with_length(array)
        case Kind.UUID:
            return _with_length(uuid_texts(array))
        case Kind.VARIANT:
            return _with_length(column_texts(array, column, quote_decimals=False).array)
        case Kind.DOUBLE:
            return [fixed_bytes(read_float_bits(array), 8)]
        case Kind.FLOAT:
            return [fixed_bytes(read_float_bits(array.cast(pa.float32())), 4)]
        case Kind.BOOLEAN:
            array = array.cast(pa.uint8())
    # Negative numbers are encoded as 64 bits: ten bytes.
    return [encode_varints(read_numbers(array).view(np.uint64))]


def _with_length(array: pa.Array) -> list[Piece]:
    return _prefix_length([text_bytes(array)], len(array))


def _well_known(array: pa.Array, kind: Kind, column: str) -> list[Piece]:
    """Return the fields of a well-known message type; zeros are omitted."""
    match kind:
        case Kind.TIMESTAMP if array.type.tz is not None:
            return _numbers(seconds_and_nanos(convert_to_micros(array, column)))
        case Kind.TIMESTAMP:
            micros = convert_to_micros(array, column)
            days = np.floor_divide(micros, _MICROS_PER_DAY)
            clock = clock_parts(micros - days * _MICROS_PER_DAY)
            return _numbers((*calendar_days(days), *clock))
        case Kind.DATE:
            return _numbers(calendar_days(read_numbers(array.cast(pa.date32()))))
        case Kind.TIME:
            return _numbers(clock_parts(convert_to_micros(array, column)))
    raw = decimal_bytes(wide_decimals(array))
    sizes = sum_sizes([raw], len(array))
    precision = _tag(2, _VARINT).raw + varint_bytes(array.type.precision)
    scale = _tag(3, _VARINT).raw + varint_bytes(array.type.scale) if array.type.scale else b""
    return [
        _tag(1, _DELIMITED),
        encode_varints(sizes.view(np.uint64)),
        raw,
        ConstantBytes(precision + scale),
    ]


def _numbers(fields: Sequence[Numbers]) -> list[Piece]:
    """Return the numbers as fields 1, 2, ..."""
    pieces: list[Piece] = []
    for index, numbers in enumerate(fields):
        valid = numbers != 0
        mask = None if valid.all() else valid
        if mask is None or mask.any():
            written = encode_varints(numbers.view(np.uint64))
            pieces += all_masked([_tag(index + 1, _VARINT), written], mask)
    return pieces
