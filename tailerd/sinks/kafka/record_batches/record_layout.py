"""Encode the records of Kafka record batches, column by column.

A record: length, attributes, timestamp delta, offset delta, key length, key, value length, value,
header count, headers; all numbers except the attributes are zigzag varints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.base import Header
from tailerd.records.byte_rows import ByteColumn, ConstantBytes, Piece, byte_column, gather_bytes
from tailerd.records.short_bytes import ShortBytes, measure_varint, varint, varints

Numbers = npt.NDArray[np.int64]

_ATTRIBUTES = ConstantBytes(b"\0")
_NULL_LENGTH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """Records as columns of encoded fields.

    Attributes:
        count: Number of records.
        fields: Key, value and headers, each after its length.
        field_bytes: Size of each record's `fields`, shape (count,).
    """

    count: int
    fields: tuple[Piece, ...]
    field_bytes: Numbers

    def take(self, rows: Numbers) -> RecordLayout:
        """Return the records at the given indexes, in that order."""
        fields = tuple(field.take(rows) for field in self.fields)
        field_bytes = np.take(self.field_bytes, rows)
        return RecordLayout(count=len(rows), fields=fields, field_bytes=field_bytes)

    def slice_records(self, start: int, end: int) -> RecordLayout:
        """Return the records from `start` until `end`, without copying."""
        return RecordLayout(
            count=end - start,
            fields=tuple(field.slice_rows(start, end) for field in self.fields),
            field_bytes=self.field_bytes[start:end],
        )

    def largest_sizes(self, last_offset_delta: int, widest_timestamp_delta: int) -> Numbers:
        """Return a close upper bound of each record's size.

        Args:
            last_offset_delta: Largest offset delta of any record.
            widest_timestamp_delta: Largest absolute timestamp delta of any record, milliseconds.
        """
        body = (
            len(_ATTRIBUTES.raw)
            + measure_varint(last_offset_delta)
            + measure_varint(widest_timestamp_delta)
            + self.field_bytes
        )
        body += measure_varint(int(body.max(initial=0)))
        return body

    def encode_records(
        self, timestamp_deltas: Numbers, offset_deltas: Numbers
    ) -> tuple[pa.Buffer, Numbers]:
        """Return the bytes of all records, and the size of each.

        Args:
            timestamp_deltas: Milliseconds after the first record of the batch; shape (1,) if all
                are equal.
            offset_deltas: Index of each record in its batch.
        """
        timestamps, offsets = varints(timestamp_deltas), varints(offset_deltas)
        body = self.field_bytes + (timestamps.sizes + offsets.sizes + len(_ATTRIBUTES.raw))
        lengths = varints(body)
        pieces = [lengths, _ATTRIBUTES, timestamps, offsets, *self.fields]
        return gather_bytes(pieces, self.count), body + lengths.sizes


def record_layout(
    keys: pa.Array | None, values: pa.Array, headers: Sequence[Header] = ()
) -> RecordLayout:
    """Return the layout of records from columns.

    Args:
        keys, values: Binary arrays of any layout; a null is a null key or value.
        headers: Headers of every record, in order.
    """
    fields = [*_with_length(keys), *_with_length(values), ConstantBytes(varint(len(headers)))]
    for header in headers:
        fields += (*_with_length(header.name.encode()), *_with_length(header.value))
    sizes = np.zeros(len(values), dtype=np.int64)
    for field in fields:
        match field:
            case ConstantBytes():
                sizes += len(field.raw)
            case ShortBytes():
                sizes += field.sizes
            case ByteColumn():
                sizes += field.lengths
    return RecordLayout(count=len(values), fields=tuple(fields), field_bytes=sizes)


def _with_length(value: bytes | pa.Array | None) -> tuple[Piece, ...]:
    if value is None:
        return (ConstantBytes(varint(_NULL_LENGTH)),)
    if isinstance(value, bytes):
        return (ConstantBytes(varint(len(value)) + value),)
    column = byte_column(value)
    lengths = column.lengths
    if column.nulls is not None:
        lengths = np.where(column.nulls, _NULL_LENGTH, lengths)
    return (varints(lengths), column)
