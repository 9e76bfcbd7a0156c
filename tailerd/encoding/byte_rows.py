"""Byte strings of many rows put one behind the other in one buffer, piece by piece.

Each piece of each row becomes an Arrow binary view (16 bytes: a length, and either the bytes
themselves or their place); the cast of the views to plain binary then copies every byte once, in
the order of the rows that is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.encoding.short_bytes import MAX_INLINE_BYTES, ShortBytes, constant

Views = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_LENGTH_MASK = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """A column whose bytes stay where they are.

    Attributes:
        views: Shape (n, 2): the two 64-bit words of each row's view; zero for null.
        lengths: Bytes of each row, int64, shape (n,); 0 for null.
        nulls: Which rows are null; None when none is.
        buffers: What the views point into.
    """

    views: Views
    lengths: Rows
    nulls: npt.NDArray[np.bool_] | None
    buffers: tuple[pa.Buffer, ...]

    def between(self, start: int, end: int) -> ByteColumn:
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
            self.views[rows],
            self.lengths[rows],
            None if self.nulls is None else self.nulls[rows],
            self.buffers,
        )


@dataclass(frozen=True, slots=True)
class ConstantBytes:
    """The same bytes on every row."""

    raw: bytes

    def between(self, start: int, end: int) -> ConstantBytes:
        """Return itself."""
        return self

    def take(self, rows: Rows) -> ConstantBytes:
        """Return itself."""
        return self


Piece = ByteColumn | ShortBytes | ConstantBytes


def byte_column(array: pa.Array) -> ByteColumn:
    """Look at a binary or string array of any layout.

    Raises:
        pyarrow.ArrowInvalid: The array is `large_binary` and lies beyond 2 GiB of its buffer.
    """
    if array.type != pa.binary_view():
        array = array.cast(pa.binary_view())
    count = len(array)
    buffers = array.buffers()
    words = np.frombuffer(buffers[1], dtype=np.uint64)[2 * array.offset :][: 2 * count]
    views = words.reshape(count, 2)
    nulls = None
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        views = np.where(nulls[:, None], np.uint64(0), views)
    lengths = (views[:, 0] & _LENGTH_MASK).astype(np.int64)
    return ByteColumn(views, lengths, nulls, tuple(buffers[2:]))


def gathered(pieces: Sequence[Piece], count: int) -> pa.Buffer:
    """Return the bytes of all rows, each row's pieces in order, in one buffer.

    Args:
        pieces: Columns have `count` rows.
        count: Number of rows.
    """
    merged = _merged(pieces)
    views = np.empty((count, len(merged), 2), dtype=np.uint64)
    buffers: list[pa.Buffer] = []
    for place, piece in enumerate(merged):
        target = views[:, place]
        if isinstance(piece, ShortBytes):
            target[:, 0] = piece.sizes.view(np.uint64) | (piece.low << _HALF)
            rest = piece.low >> _HALF
            target[:, 1] = rest if piece.high is None else rest | (piece.high << _HALF)
        elif isinstance(piece, ConstantBytes):
            prefix = int.from_bytes(piece.raw[:4], "little")
            target[:, 0] = len(piece.raw) | prefix << 32
            target[:, 1] = len(buffers)
            buffers.append(pa.py_buffer(piece.raw))
        else:
            target[:] = piece.views
            if buffers and piece.buffers:
                is_outside = piece.lengths > MAX_INLINE_BYTES
                target[:, 1] += is_outside.astype(np.uint64) * np.uint64(len(buffers))
            buffers += piece.buffers
    column = pa.Array.from_buffers(
        pa.binary_view(), views.shape[0] * len(merged), [None, pa.py_buffer(views), *buffers]
    )
    # 64-bit offsets: the sum of all rows may be larger than what 32 bits reach.
    data = column.cast(pa.large_binary()).buffers()[2]
    return pa.py_buffer(b"") if data is None else data


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
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
