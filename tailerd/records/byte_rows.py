"""Concatenate byte strings of many rows, piece by piece, into one buffer.

Each piece of each row becomes an Arrow binary view (16 bytes: a length, and either the bytes
themselves or a reference); the cast of the views to plain binary then copies every byte once, in
the required order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.short_bytes import MAX_INLINE_BYTES, ShortBytes, constant

Views = npt.NDArray[np.void]
Rows = npt.NDArray[np.int64]

_VIEW = np.dtype("V16")
"""Arrow's binary view, as an opaque NumPy item."""
_VIEW_REACH = 2**31 - 1
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """A column that references its bytes without copying.

    Attributes:
        views: Each row's view, shape (n,); zero for null.
        lengths: Bytes of each row, int64, shape (n,); 0 for null.
        nulls: Which rows are null; None if none is.
        buffers: The buffers that the views reference.
    """

    views: Views
    lengths: Rows
    nulls: npt.NDArray[np.bool_] | None
    buffers: tuple[pa.Buffer, ...]

    def slice_rows(self, start: int, end: int) -> ByteColumn:
        """Return the rows from `start` until `end`, without copying."""
        return ByteColumn(
            self.views[start:end],
            self.lengths[start:end],
            None if self.nulls is None else self.nulls[start:end],
            self.buffers,
        )

    def take(self, rows: Rows) -> ByteColumn:
        """Return the given rows, in that order."""
        return ByteColumn(
            np.take(self.views, rows),
            np.take(self.lengths, rows),
            None if self.nulls is None else self.nulls[rows],
            self.buffers,
        )


@dataclass(frozen=True, slots=True)
class ConstantBytes:
    """The same bytes on every row."""

    raw: bytes

    def slice_rows(self, start: int, end: int) -> ConstantBytes:
        """Return itself."""
        return self

    def take(self, rows: Rows) -> ConstantBytes:
        """Return itself."""
        return self


Piece = ByteColumn | ShortBytes | ConstantBytes


def byte_column(array: pa.Array) -> ByteColumn:
    """Return the views of a binary or string array of any layout.

    Raises:
        pyarrow.ArrowCapacityError: One value is larger than 2 GiB.
    """
    if pa.types.is_large_binary(array.type):
        data = array.buffers()[2]
        if data is not None and data.size > _VIEW_REACH:
            return _put_together([_column(piece) for piece in _within_reach(array)])
    return _column(array)


def _column(array: pa.Array) -> ByteColumn:
    if array.type != pa.binary_view():
        array = array.cast(pa.binary_view())
    buffers = array.buffers()
    views = np.frombuffer(buffers[1], dtype=_VIEW)[array.offset : array.offset + len(array)]
    nulls = None
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        views = views.copy()
        views[nulls] = b""
    lengths = views.view(np.int32)[::4].astype(np.int64)
    return ByteColumn(views, lengths, nulls, tuple(buffers[2:]))


def _within_reach(array: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of a `large_binary` array whose bytes are all within the reach of views."""
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    start = 0
    while start < len(array):
        first = int(offsets[start])
        end = int(np.searchsorted(offsets, first + _VIEW_REACH, side="right")) - 1
        end = min(max(end, start + 1), len(array))
        validity = None
        if array.null_count:
            is_valid = array.slice(start, end - start).is_valid()
            validity = pa.array(is_valid.to_numpy(zero_copy_only=False)).buffers()[1]
        near = pa.py_buffer(offsets[start : end + 1] - first)
        bytes_of_piece = data.slice(first, int(offsets[end]) - first)
        yield pa.Array.from_buffers(array.type, end - start, [validity, near, bytes_of_piece])
        start = end


def _put_together(columns: Sequence[ByteColumn]) -> ByteColumn:
    buffers: tuple[pa.Buffer, ...] = ()
    views = []
    for column in columns:
        views.append(_shift_buffers(column, len(buffers)))
        buffers += column.buffers
    nulls = [
        np.zeros(len(column.lengths), dtype=bool) if column.nulls is None else column.nulls
        for column in columns
    ]
    lengths = np.concatenate([column.lengths for column in columns])
    return ByteColumn(np.concatenate(views), lengths, np.concatenate(nulls), buffers)


def _shift_buffers(column: ByteColumn, num_buffers: int) -> Views:
    """Return the views with buffer indices shifted by `num_buffers`."""
    if not num_buffers or not column.buffers:
        return column.views
    is_outside = column.lengths > MAX_INLINE_BYTES
    if not is_outside.any():
        return column.views
    words = column.views.copy().view(np.uint64)
    words[1::2] += is_outside.astype(np.uint64) * np.uint64(num_buffers)
    return words.view(_VIEW)


def gather_bytes(pieces: Sequence[Piece], count: int) -> pa.Buffer:
    """Return the bytes of all rows, each row's pieces in order, in one buffer.

    Args:
        pieces: Columns have `count` rows.
        count: Number of rows.
    """
    merged = _merge_pieces(pieces)
    # From Arrow's memory pool: unlike NumPy's, it is not returned to the system each time.
    memory = pa.allocate_buffer(count * len(merged) * _VIEW.itemsize)
    views = np.frombuffer(memory, dtype=_VIEW).reshape(count, len(merged))
    words = np.frombuffer(memory, dtype=np.uint64).reshape(count, len(merged), 2)
    buffers: list[pa.Buffer] = []
    for index, piece in enumerate(merged):
        match piece:
            case ShortBytes():
                words[:, index, 0] = piece.sizes.view(np.uint64) | (piece.low << _HALF)
                rest = piece.low >> _HALF
                words[:, index, 1] = rest if piece.high is None else rest | (piece.high << _HALF)
            case ConstantBytes():
                prefix = int.from_bytes(piece.raw[:4], "little")
                words[:, index, 0] = len(piece.raw) | prefix << 32
                words[:, index, 1] = len(buffers)
                buffers.append(pa.py_buffer(piece.raw))
            case ByteColumn():
                views[:, index] = _shift_buffers(piece, len(buffers))
                buffers += piece.buffers
    column = pa.Array.from_buffers(pa.binary_view(), count * len(merged), [None, memory, *buffers])
    # 64-bit offsets: the total size of all rows may exceed 32 bits.
    data = column.cast(pa.large_binary()).buffers()[2]
    return pa.py_buffer(b"") if data is None else data


def _merge_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Join neighbours: fewer views are faster."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(last, ConstantBytes) and isinstance(piece, ConstantBytes):
            merged[-1] = ConstantBytes(last.raw + piece.raw)
        else:
            merged.append(piece)
    shortened: list[Piece] = []
    for piece in merged:
        if isinstance(piece, ConstantBytes) and len(piece.raw) <= MAX_INLINE_BYTES:
            piece = constant(piece.raw)
        last = shortened[-1] if shortened else None
        if (
            isinstance(last, ShortBytes)
            and isinstance(piece, ShortBytes)
            and last.fits_before(piece)
        ):
            shortened[-1] = last.then(piece)
        else:
            shortened.append(piece)
    return shortened
