"""The records of Kafka record batches as columns, down to their bytes.

One record: length, attributes, timestamp delta, offset delta, key length, key, value length, value,
header count, headers; every number but the attributes is a zigzag varint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.base import Header
from tailerd.records.byte_rows import ByteColumn, ConstantBytes, Piece, byte_column, gathered
from tailerd.records.short_bytes import ShortBytes, size_of_varint, varint, varints

Numbers = npt.NDArray[np.int64]

_ATTRIBUTES = ConstantBytes(b"\0")
_NULL_LENGTH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """Records in the order of their bytes.

    Attributes:
        count: Number of records.
        fields: Key, value and headers, each with the length before it.
        field_bytes: Bytes of `fields` of each record, shape (count,).
    """

    count: int
    fields: tuple[Piece, ...]
    field_bytes: Numbers

    def take(self, rows: Numbers) -> RecordLayout:
        """Return the given records, in that order."""
        fields = tuple(field.take(rows) for field in self.fields)
        field_bytes = np.take(self.field_bytes, rows)
        return RecordLayout(count=len(rows), fields=fields, field_bytes=field_bytes)

    def between(self, start: int, end: int) -> RecordLayout:
        """Return the records from `start` until `end`, without copying."""
        return RecordLayout(
            count=end - start,
            fields=tuple(field.between(start, end) for field in self.fields),
            field_bytes=self.field_bytes[start:end],
        )

    def largest_sizes(self, last_offset_delta: int, widest_timestamp_delta: int) -> Numbers:
        """Return for each record a size it does not exceed, and comes close to.

        Args:
            last_offset_delta: No record has a greater one.
            widest_timestamp_delta: Milliseconds; none is farther from zero.
        """
        body = (
            len(_ATTRIBUTES.raw)
            + size_of_varint(last_offset_delta)
            + size_of_varint(widest_timestamp_delta)
            + self.field_bytes
        )
        body += size_of_varint(int(body.max(initial=0)))
        return body

    def written(
        self, timestamp_deltas: Numbers, offset_deltas: Numbers
    ) -> tuple[pa.Buffer, Numbers]:
        """Return the bytes of all records, and the size of each.

        Args:
            timestamp_deltas: Milliseconds after the first record of the batch, of shape (1,) where
                they are alike.
            offset_deltas: Place of each record in its batch.
        """
        timestamps, offsets = varints(timestamp_deltas), varints(offset_deltas)
        body = self.field_bytes + (timestamps.sizes + offsets.sizes + len(_ATTRIBUTES.raw))
        lengths = varints(body)
        pieces = [lengths, _ATTRIBUTES, timestamps, offsets, *self.fields]
        return gathered(pieces, self.count), body + lengths.sizes


def record_layout(
    keys: pa.Array | None, values: pa.Array, headers: Sequence[Header] = ()
) -> RecordLayout:
    """Lay out records of columns.

    Args:
        keys, values: Binary of any layout; null is no key and no value.
        headers: In this order on every record.
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
