"""The parts of binary records: columns, encoded rows, constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import TableError
from tailerd.records.binary.byte_pieces import binary_array, joined_rows
from tailerd.records.byte_rows import ByteColumn, ConstantBytes, Piece
from tailerd.records.short_bytes import ShortBytes

BLOCK_ROWS = 16_384
"""Rows that are encoded at once: their numbers fit the CPU's L2 cache."""
_BLOCK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded records that are nested in others.

    Attributes:
        body: Their bytes; a null is a missing record. Constant if all are equal, None if no row has
            one.
    """

    body: ByteColumn | ConstantBytes | None


@dataclass(frozen=True, slots=True)
class ConstantColumn:
    """A column in which every row has the same text or number; timestamps are microseconds."""

    value: str | int


Column: TypeAlias = pa.Array | EncodedRows | ConstantColumn


class RecordEncoder(Protocol):
    """Encodes rows of a record's fields, without a header."""

    def pieces(self, columns: Sequence[Column], count: int) -> list[Piece]:
        """Return the pieces of each row's bytes.

        Args:
            columns: One per field of the record, in order.
            count: Number of rows.

        Raises:
            TableError: The format cannot represent a value.
        """
        ...


def encode_rows(
    encoder: RecordEncoder, header: bytes, columns: Sequence[Column], count: int
) -> pa.Array:
    """Return the records of rows as `binary`, or `large_binary` above 2 GiB.

    Args:
        encoder: The encoder of these columns.
        header: Prefix of each record.
        columns: As for `RecordEncoder.pieces`.
        count: Number of rows.
    """
    size = sum(column.nbytes for column in columns if isinstance(column, pa.Array))
    step = max(1, min(BLOCK_ROWS, count * _BLOCK_BYTES // max(size, 1)))
    parts = []
    for start in range(0, count, step):
        end = min(start + step, count)
        block = [column_between(column, start, end) for column in columns]
        pieces = [ConstantBytes(header), *encoder.pieces(block, end - start)]
        parts.append(joined_rows(pieces, end - start))
    return binary_array(parts) if parts else pa.array([], pa.binary())


def column_between(column: Column, start: int, end: int) -> Column:
    """Return the rows from `start` until `end`, without copying."""
    match column:
        case ConstantColumn():
            return column
        case EncodedRows():
            return EncodedRows(column.body and column.body.slice_rows(start, end))
    return column.slice(start, end - start)


def plain_values(array: pa.Array) -> pa.Array:
    """Return the stored values, without extension type and run-end encoding."""
    if isinstance(array.type, pa.BaseExtensionType):
        return plain_values(array.storage)
    if pa.types.is_run_end_encoded(array.type):
        return plain_values(pc.run_end_decode(array))
    return array


def take_piece(piece: Piece, indices: pa.Array) -> Piece:
    """Return the piece of each row's dictionary value; for a null index, that of the first."""
    rows: npt.NDArray[np.int64] = indices.fill_null(0).to_numpy().astype(np.int64)
    match piece:
        case ConstantBytes():
            return piece
        case ShortBytes() | ByteColumn():
            return piece.take(rows)


def unexpected_null(field: pa.Field) -> TableError:
    """Return the error for a null in a column that is not nullable."""
    return TableError(
        f"Column {field.name!r} has a null, although its schema allows none: the value format"
        " cannot represent it.",
        remedy="Rewrite the rows, or make the column nullable.",
    )
