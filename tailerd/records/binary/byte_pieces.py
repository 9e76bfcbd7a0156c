"""Build pieces of rows' bytes from columns, mask nulls, and join them.

A piece is an input of `byte_rows`: short byte strings as numbers, references to byte strings, or
the same bytes on every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.records.byte_rows import ByteColumn, ConstantBytes, Piece, byte_column, gather_bytes
from tailerd.records.short_bytes import MAX_INLINE_BYTES, ShortBytes, constant

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_HALF = np.uint64(32)
_MAX_INT32 = 2**31 - 1
_OFFSET_BYTES = {pa.string(): 4, pa.binary(): 4, pa.large_string(): 8, pa.large_binary(): 8}


def valid_rows(array: pa.Array) -> Mask | None:
    """Return which values are not null; None if all are."""
    if not array.null_count:
        return None
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def fixed_values(array: pa.Array, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return the values of an array of fixed width without conversion; zero for null.

    Args:
        array: Its values have the width of `kind`.
        kind: A numpy type.
    """
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), kind)
    width = np.dtype(kind).itemsize
    start = array.offset * width
    values = np.frombuffer(buffer, kind, offset=start, count=len(array))
    valid = valid_rows(array)
    return values if valid is None else np.where(valid, values, kind())


def read_numbers(array: pa.Array) -> Numbers:
    """Return signed or unsigned integers, dates, times or timestamps as int64; zero for null.

    Unsigned numbers of 64 bits keep their bits.
    """
    kind = array.type
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    width = np.dtype(f"{sign}{kind.bit_width // 8}").type
    return fixed_values(array, width).astype(np.int64, copy=False)


def fixed_bytes(words: npt.NDArray[np.uint64], size: int) -> ShortBytes:
    """Return the lowest `size` bytes of each number, little-endian; at most eight."""
    return ShortBytes(words, None, np.full(1, size, np.int64), size)


def text_bytes(array: pa.Array) -> ByteColumn | ShortBytes:
    """Return strings or binary of any layout; the caller handles nulls.

    If no value is long, they are `ShortBytes`, which are joined with their neighbours without a
    copy.
    """
    column = byte_column(_from_first_row(array))
    longest = int(column.lengths.max(initial=0))
    if longest > MAX_INLINE_BYTES:
        return column
    words = column.views.view(np.uint64).reshape(-1, 2)
    first, second = words[:, 0], words[:, 1]
    low = (first >> _HALF) | (second << _HALF)
    return ShortBytes(low, second >> _HALF if longest > 8 else None, column.lengths, longest)


def _from_first_row(array: pa.Array) -> pa.Array:
    """Return a slice as an array with offset zero and without nulls.

    Casting a slice to views takes Arrow ten times as long. No value is copied.
    """
    kind = array.type
    _, offsets, *data = array.buffers()
    if kind not in _OFFSET_BYTES or offsets is None or not array.offset:
        return array
    offsets = offsets.slice(array.offset * _OFFSET_BYTES[kind])
    return pa.Array.from_buffers(kind, len(array), [None, offsets, *data])


def mask_piece(piece: Piece, valid: Mask | None) -> Piece:
    """Return the piece with no bytes where a row is not valid."""
    if valid is None:
        return piece
    if isinstance(piece, ByteColumn):
        return _masked_column(piece, valid)
    if isinstance(piece, ConstantBytes):
        if len(piece.raw) > MAX_INLINE_BYTES:
            rows = pa.array(np.zeros(len(valid), np.int32))
            return _masked_column(byte_column(pa.array([piece.raw], pa.binary()).take(rows)), valid)
        piece = constant(piece.raw)
    words = valid.astype(np.uint64)
    return ShortBytes(
        piece.low * words,
        None if piece.high is None else piece.high * words,
        piece.sizes * valid,
        piece.max_size,
    )


def _masked_column(column: ByteColumn, valid: Mask) -> ByteColumn:
    views = column.views.copy()
    views[~valid] = b""
    return ByteColumn(views, column.lengths * valid, None, column.buffers)


def nulls_where(column: ByteColumn, missing: Mask) -> ByteColumn:
    """Return the column with null in the given rows."""
    return replace(_masked_column(column, ~missing), nulls=missing)


def all_masked(pieces: Sequence[Piece], valid: Mask | None) -> list[Piece]:
    """Return the pieces with no bytes where a row is not valid."""
    return [mask_piece(piece, valid) for piece in pieces]


def sum_sizes(pieces: Sequence[Piece], count: int) -> Numbers:
    """Return the bytes of each row, shape (count,)."""
    total = np.zeros(count, np.int64)
    for piece in pieces:
        match piece:
            case ConstantBytes():
                total += len(piece.raw)
            case ShortBytes():
                total += piece.sizes
            case ByteColumn():
                total += piece.lengths
    return total


def joined_rows(pieces: Sequence[Piece], count: int) -> pa.Array:
    """Return the bytes of each row as one value of a `large_binary` array."""
    ends = np.concatenate(([0], np.cumsum(sum_sizes(pieces, count))))
    return (
        _rows_between(gather_bytes(pieces, count), ends)
        if count
        else pa.array([], pa.large_binary())
    )


def joined_runs(pieces: Sequence[Piece], count: int, offsets: Numbers) -> ByteColumn:
    """Return the concatenated bytes of each run of rows.

    Args:
        pieces: Those of the lists' items.
        count: Number of items.
        offsets: Shape (n + 1,), from 0 to `count`: list i has the items from offset i until offset
            i + 1.
    """
    if not count:
        return byte_column(
            pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(offsets) - 1, int)))
        )
    ends = np.concatenate(([0], np.cumsum(sum_sizes(pieces, count))))
    return byte_column(_rows_between(gather_bytes(pieces, count), ends[offsets]))


def binary_array(parts: Sequence[pa.Array]) -> pa.Array:
    """Return `large_binary` arrays as one `binary` array, or a large one above 2 GiB."""
    total = sum(part.buffers()[2].size if part.buffers()[2] else 0 for part in parts)
    if total > _MAX_INT32:
        return pa.concat_arrays(parts)
    return pa.concat_arrays([part.cast(pa.binary()) for part in parts])


def prepend_header(values: pa.Array, header: bytes) -> pa.Array:
    """Return binary values with the same bytes before each; null stays null."""
    column = byte_column(values)
    valid = valid_rows(values)
    parts = joined_rows([mask_piece(ConstantBytes(header), valid), column], len(values))
    whole = binary_array([parts])
    return whole if valid is None else pc.if_else(pa.array(valid), whole, None)


def _rows_between(data: pa.Buffer, ends: Numbers) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(np.ascontiguousarray(ends)), data]
    )
