"""Build Kafka record batches (magic 2) from columns of keys and values.

Batches of several partitions are encoded together into one buffer; a batch is a slice of it. The
producer's id, epoch and sequence and the checksum are written by `RecordBatch.finish`.

Layout: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from tailerd.records.base import Header, Records
from tailerd.records.short_bytes import varint
from tailerd.sinks.kafka.record_batches.compression import Compression, compress_bytes
from tailerd.sinks.kafka.record_batches.record_layout import RecordLayout, record_layout

Rows = npt.NDArray[np.int64]

HEADER_BYTES = 61
MAX_RECORDS = 2**20
"""Maximum number of records in one batch, even if a higher limit is configured."""

_FRAME = Struct(">qiib")  # base offset, length, leader epoch, magic
_BODY = Struct(
    ">hiqqqhii"
)  # attributes .. record count: covered by the checksum, together with the records
_CRC = Struct(">I")
_MAGIC = 2
_BYTES_BEFORE_LENGTH_COUNTS = 12
_TRANSACTIONAL = 0x10
_PORTION_BYTES = 2 * 1024 * 1024
_ZERO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatchLimit:
    """Upper bounds of one batch.

    Attributes:
        max_bytes: Size of the whole batch before compression, including the header. A batch that
            compression would enlarge is sent uncompressed, so the sent size has the same bound.
        target_bytes: Size above which a batch has only one record.
        max_records: At most `MAX_RECORDS`.
    """

    max_bytes: int = 1_000_000
    target_bytes: int = 2**31
    max_records: int = MAX_RECORDS


DEFAULT_RECORD_BATCH_LIMIT = RecordBatchLimit()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """A batch of one partition, complete except for its header.

    Attributes:
        partition: Its partition.
        rows: Indexes of its records in the input, in order.
        payload: The records, compressed with `compression`.
        compression: `none` also if compression did not make the payload smaller.
        first_timestamp_ms, max_timestamp_ms: Of its records, milliseconds since the epoch.
        uncompressed_bytes: Size of the whole batch without compression.
    """

    partition: int
    rows: Rows
    payload: bytes | memoryview
    compression: Compression
    first_timestamp_ms: int
    max_timestamp_ms: int
    uncompressed_bytes: int

    @property
    def num_records(self) -> int:
        """Number of records, by which the producer's sequence number advances."""
        return len(self.rows)

    @property
    def size_bytes(self) -> int:
        """Size of the complete batch."""
        return HEADER_BYTES + len(self.payload)

    def finish(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> memoryview:
        """Return a copy of the batch with its header; ids are -1 without an idempotent producer."""
        body = _BODY.pack(
            self.compression.attribute | (_TRANSACTIONAL if is_transactional else 0),
            self.num_records - 1,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            self.num_records,
        )
        frame = _FRAME.pack(0, self.size_bytes - _BYTES_BEFORE_LENGTH_COUNTS, 0, _MAGIC)
        checksum = _CRC.pack(crc32c(self.payload, crc32c(body)))
        # From Arrow's memory pool: memory of `bytes` is returned to the system each time.
        whole = memoryview(pa.allocate_buffer(self.size_bytes)).cast("B")
        whole[:HEADER_BYTES] = frame + checksum + body
        whole[HEADER_BYTES:] = self.payload
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OversizeRecord:
    """A record that exceeds the batch limit and is in no batch.

    Attributes:
        row: Its index in the input.
        size_bytes: Uncompressed size of a batch with only this record; may be a few bytes too high,
            because it assumes the longest varints of all records.
    """

    row: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBatches:
    """The batches built from records.

    Attributes:
        batches: Ordered by partition, then by the order of the records.
        oversize: Records that are in no batch, in input order.
    """

    batches: tuple[RecordBatch, ...]
    oversize: tuple[OversizeRecord, ...] = ()


def record_batches(
    records: Records,
    *,
    timestamps_ms: int | Rows,
    partitions: int | npt.NDArray[np.integer] = 0,
    headers: Sequence[Header] = (),
    compression: Compression = Compression.NONE,
    limit: RecordBatchLimit = DEFAULT_RECORD_BATCH_LIMIT,
) -> BuiltBatches:
    """Build the batches of all records; the same arguments produce the same bytes.

    Args:
        records: Keys and values.
        timestamps_ms: Milliseconds since the epoch, one for all records or one for each.
        partitions: Partition number, one for all records or one for each.
        headers: Headers of every record, in order.
        compression: Applied to each batch that it makes smaller.
        limit: Limits of one batch.
    """
    target_bytes = min(limit.target_bytes, limit.max_bytes)
    if len(records) <= MAX_FEW_RECORDS and target_bytes == limit.max_bytes:
        return _few(records, timestamps_ms, partitions, headers, compression, limit)
    layout = record_layout(records.keys, records.values, headers)
    timestamps = np.atleast_1d(np.asarray(timestamps_ms, dtype=np.int64))
    max_records = min(limit.max_records, MAX_RECORDS)
    widest = int(np.ptp(timestamps)) if len(timestamps) else 0
    sizes = layout.largest_sizes(max(min(max_records, layout.count) - 1, 0), widest)
    order, oversize = _order_records(sizes + HEADER_BYTES, partitions, limit.max_bytes)
    if order is not None:
        sizes = sizes[order]
        timestamps = timestamps if len(timestamps) == 1 else timestamps[order]
    from_rows = np.array([partitions])
    if not isinstance(partitions, int):
        from_rows = partitions if order is None else partitions[order]
    plan = _Plan(layout=layout, order=order, partitions=from_rows, timestamps=timestamps)
    ends = np.concatenate((_ZERO, np.cumsum(sizes)))
    bounds = _bounds(ends, from_rows, target_bytes, max_records)
    batches: list[RecordBatch] = []
    start = 0
    while start < len(bounds) - 1:
        until = ends[bounds[start]] + _PORTION_BYTES
        end = max(int(np.searchsorted(ends[bounds], until, side="right")) - 1, start + 1)
        batches += plan.built(bounds[start : end + 1], compression)
        start = end
    return BuiltBatches(batches=tuple(batches), oversize=oversize)


def _few(
    records: Records,
    timestamps_ms: int | Rows,
    partitions: int | npt.NDArray[np.integer],
    headers: Sequence[Header],
    compression: Compression,
    limit: RecordBatchLimit,
) -> BuiltBatches:
    made, oversize = encode_few_records(
        records,
        timestamps_ms,
        partitions,
        headers,
        max_bytes=limit.max_bytes - HEADER_BYTES,
        max_records=limit.max_records,
    )
    batches = []
    for each in made:
        payload, used = _compress(memoryview(each.payload), compression)
        batches.append(
            RecordBatch(
                partition=each.partition,
                rows=np.array(each.rows, dtype=np.int64),
                payload=payload,
                compression=used,
                first_timestamp_ms=each.first_timestamp_ms,
                max_timestamp_ms=each.max_timestamp_ms,
                uncompressed_bytes=HEADER_BYTES + len(each.payload),
            )
        )
    return BuiltBatches(
        batches=tuple(batches),
        oversize=tuple(
            OversizeRecord(row=row, size_bytes=HEADER_BYTES + size) for row, size in oversize
        ),
    )


def _order_records(
    sizes: Rows, partitions: int | npt.NDArray[np.integer], max_bytes: int
) -> tuple[Rows | None, tuple[OversizeRecord, ...]]:
    """Return the order of the records that fit, grouped by partition, and the oversize records.

    An order of None is the input order of all records.
    """
    order = None
    if not isinstance(partitions, int):
        # NumPy uses radix sort for 16-bit integers.
        narrow = partitions.astype(np.uint16) if partitions.max(initial=0) < 2**16 else partitions
        order = np.argsort(narrow, kind="stable")
    if int(sizes.max(initial=0)) <= max_bytes:
        return order, ()
    is_oversize = sizes > max_bytes
    oversize = tuple(
        OversizeRecord(row=row, size_bytes=int(sizes[row]))
        for row in np.flatnonzero(is_oversize).tolist()
    )
    return np.flatnonzero(~is_oversize) if order is None else order[~is_oversize[order]], oversize


def _bounds(
    ends: Rows, partitions: npt.NDArray[np.integer], max_bytes: int, max_records: int
) -> Rows:
    """Return the start of each batch and the end of the last; one binary search per batch."""
    count = len(ends) - 1
    changes = np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
    bounds = [0]
    for stop in (*changes.tolist(), count):
        while (start := bounds[-1]) < stop:
            room = ends[start] + max_bytes - HEADER_BYTES
            fitting = int(np.searchsorted(ends, room, side="right")) - 1
            bounds.append(min(stop, start + max_records, max(fitting, start + 1)))
    return np.array(bounds, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Records in their final order; `partitions` and `timestamps` are already in that order.

    `partitions` and `timestamps` have shape (1,) if all are equal; an `order` of None is that of
    the layout.
    """

    layout: RecordLayout
    order: Rows | None
    partitions: npt.NDArray[np.integer]
    timestamps: Rows

    def built(self, bounds: Rows, compression: Compression) -> list[RecordBatch]:
        """Build adjacent batches together.

        A call builds about `_PORTION_BYTES`, so that NumPy's arrays stay in the CPU cache and their
        memory is reused by the next call.
        """
        first, last = int(bounds[0]), int(bounds[-1])
        counts = np.diff(bounds)
        offsets = np.arange(last - first) - np.repeat(bounds[:-1] - first, counts)
        if len(self.timestamps) == 1:
            starts = largest = np.broadcast_to(self.timestamps, counts.shape)
            deltas = _ZERO
        else:
            timestamps = self.timestamps[first:last]
            starts = self.timestamps[bounds[:-1]]
            largest = np.maximum.reduceat(timestamps, bounds[:-1] - first)
            deltas = timestamps - np.repeat(starts, counts)
        if self.order is None:
            rows, layout = np.arange(first, last), self.layout.slice_records(first, last)
        else:
            rows = self.order[first:last]
            layout = self.layout.take(rows)
        data, sizes = layout.encode_records(deltas, offsets)
        payloads = memoryview(data).cast("B")
        ends = np.cumsum(np.add.reduceat(sizes, bounds[:-1] - first)).tolist()
        indexes = self.partitions[bounds[:-1]] if len(self.partitions) > 1 else self.partitions
        batches = []
        for index, (start, end) in enumerate(pairwise([0, *ends])):
            payload, used = _compress(payloads[start:end], compression)
            batches.append(
                RecordBatch(
                    partition=int(indexes[index if len(indexes) > 1 else 0]),
                    rows=rows[bounds[index] - first : bounds[index + 1] - first],
                    payload=payload,
                    compression=used,
                    first_timestamp_ms=int(starts[index]),
                    max_timestamp_ms=int(largest[index]),
                    uncompressed_bytes=HEADER_BYTES + end - start,
                )
            )
        return batches


def _compress(
    payload: memoryview, compression: Compression
) -> tuple[bytes | memoryview, Compression]:
    """Return the compressed payload if it is smaller, else the payload itself."""
    packed = compress_bytes(payload, compression)
    if len(packed) < len(payload):
        return packed, compression
    return payload, Compression.NONE


# The layout is that of `record_layout`.

MAX_FEW_RECORDS = 150


@dataclass(frozen=True, slots=True)
class FewRecords:
    """Encoded records of one partition.

    Attributes:
        partition: Their partition.
        rows: Their indexes in the input, in order.
        payload: Their bytes.
        first_timestamp_ms, max_timestamp_ms: Of these records.
    """

    partition: int
    rows: list[int]
    payload: bytes
    first_timestamp_ms: int
    max_timestamp_ms: int


def encode_few_records(
    records: Records,
    timestamps_ms: int | npt.NDArray[np.int64],
    partitions: int | npt.NDArray[np.integer],
    headers: Sequence[Header],
    *,
    max_bytes: int,
    max_records: int,
) -> tuple[list[FewRecords], list[tuple[int, int]]]:
    """Return payloads by partition, and (row, size) of each record larger than `max_bytes`.

    Args:
        records, timestamps_ms, partitions, headers: As for `record_batches`.
        max_bytes, max_records: Limits of one payload.
    """
    count = len(records)
    fields = _fields(records, headers)
    times = [timestamps_ms] * count if isinstance(timestamps_ms, int) else timestamps_ms.tolist()
    from_rows = [partitions] * count if isinstance(partitions, int) else partitions.tolist()
    by_partition: dict[int, list[int]] = {}
    oversize: list[tuple[int, int]] = []
    for row, partition in enumerate(from_rows):
        size = len(_record(0, 0, fields[row]))
        if size > max_bytes:
            oversize.append((row, size))
        else:
            by_partition.setdefault(partition, []).append(row)
    made = [
        batch
        for partition in sorted(by_partition)
        for batch in _batches(
            partition, by_partition[partition], fields, times, max_bytes, max_records
        )
    ]
    return made, oversize


def _batches(
    partition: int,
    rows: list[int],
    fields: list[bytes],
    times: list[int],
    max_bytes: int,
    max_records: int,
) -> Iterator[FewRecords]:
    """Yield the payloads of one partition, split at the limits."""
    start, size = 0, 0
    pieces: list[bytes] = []
    for index, row in enumerate(rows):
        record = _record(times[row] - times[rows[start]], index - start, fields[row])
        if pieces and (size + len(record) > max_bytes or len(pieces) == max_records):
            yield _cut(partition, rows[start:index], pieces, times)
            start, size, pieces = index, 0, []
            record = _record(0, 0, fields[row])
        pieces.append(record)
        size += len(record)
    yield _cut(partition, rows[start:], pieces, times)


def _cut(partition: int, rows: list[int], pieces: list[bytes], times: list[int]) -> FewRecords:
    largest = max(times[row] for row in rows)
    return FewRecords(partition, rows, b"".join(pieces), times[rows[0]], largest)


def _record(timestamp_delta: int, offset_delta: int, fields: bytes) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + fields
    return varint(len(body)) + body


def _fields(records: Records, headers: Sequence[Header]) -> list[bytes]:
    """Return key, value and headers of each record, with their lengths."""
    values = _with_lengths(records.values)
    if records.keys is None:
        fields = [b"\x01" + value for value in values]
    else:
        keys = _with_lengths(records.keys)
        fields = [key + value for key, value in zip(keys, values, strict=True)]
    tail = varint(len(headers))
    for header in headers:
        name = header.name.encode()
        tail += varint(len(name)) + name
        if isinstance(header.value, pa.Array):
            column = _with_lengths(header.value)
            fields = [field + tail + value for field, value in zip(fields, column, strict=True)]
            tail = b""
        else:
            tail += _with_length(header.value)
    return [field + tail for field in fields] if tail else fields


def _with_lengths(array: pa.Array) -> list[bytes]:
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    return [_with_length(value) for value in array.to_pylist()]


def _with_length(value: bytes | None) -> bytes:
    return b"\x01" if value is None else varint(len(value)) + value
