"""Kafka record batches, version 2, built of columns of keys and values.

All partitions are laid out in one buffer at once; a batch is a slice of it. What only the producer
knows (its id, epoch and sequence) and the checksum are written when a batch is finished.

Layout: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from tailerd.records.base import Header, Records
from tailerd.sinks.kafka.record_batches import few_records
from tailerd.sinks.kafka.record_batches.compression import Compression, compressed
from tailerd.sinks.kafka.record_batches.record_layout import RecordLayout, record_layout

Rows = npt.NDArray[np.int64]

HEADER_BYTES = 61
MAX_RECORDS = 2**20
"""Of one batch, whatever the limit."""

_FRAME = Struct(">qiib")  # base offset, length, leader epoch, magic
_BODY = Struct(
    ">hiqqqhii"
)  # attributes .. record count: what the checksum covers, with the records
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
        max_bytes: Of the whole batch before compression, header included. A batch that
            compression would make larger is sent as it is, so this bounds what is sent too.
        max_records: At most `MAX_RECORDS`.
    """

    max_bytes: int = 1_000_000
    max_records: int = MAX_RECORDS


DEFAULT_RECORD_BATCH_LIMIT = RecordBatchLimit()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """One batch of one partition, finished but for its header.

    Attributes:
        partition: Where it goes.
        rows: Numbers of its records among those it was built of, in order.
        payload: The records, compressed as `compression` says.
        compression: `none` also where compressing did not make the payload smaller.
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
        """Number of records, which is also how far the sequence moves on."""
        return len(self.rows)

    @property
    def size_bytes(self) -> int:
        """Size of the finished batch."""
        return HEADER_BYTES + len(self.payload)

    def finish(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> memoryview:
        """Return the batch as it is sent, a copy; -1 where the producer is not idempotent."""
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
        # Memory of Arrow's pool: that of `bytes` goes back to the system each time.
        whole = memoryview(pa.allocate_buffer(self.size_bytes)).cast("B")
        whole[:HEADER_BYTES] = frame + checksum + body
        whole[HEADER_BYTES:] = self.payload
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OversizeRecord:
    """A record that is larger than a batch may be, and in none.

    Attributes:
        row: Its number among the records.
        size_bytes: Size of a batch that would hold nothing else, without compression; a few bytes
            more where numbers of other records are longer.
    """

    row: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBatches:
    """What records became.

    Attributes:
        batches: By partition, and within each in the order of the records.
        oversize: Records that are in no batch, in their order.
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
    """Build the batches of all records; the same arguments give the same bytes.

    Args:
        records: Keys and values.
        timestamps_ms: Milliseconds since the epoch, of all records or of each.
        partitions: The partition, from 0, of all records or of each.
        headers: In this order on every record.
        compression: Tried on each batch.
        limit: When a batch is full; it holds at least one record.
    """
    if len(records) <= few_records.MAX_FEW_RECORDS:
        return _few(records, timestamps_ms, partitions, headers, compression, limit)
    layout = record_layout(records.keys, records.values, headers)
    timestamps = np.atleast_1d(np.asarray(timestamps_ms, dtype=np.int64))
    max_records = min(limit.max_records, MAX_RECORDS)
    widest = int(np.ptp(timestamps)) if len(timestamps) else 0
    sizes = layout.largest_sizes(max(min(max_records, layout.count) - 1, 0), widest)
    order, oversize = _ordered(sizes + HEADER_BYTES, partitions, limit.max_bytes)
    if order is not None:
        sizes = sizes[order]
        timestamps = timestamps if len(timestamps) == 1 else timestamps[order]
    of_rows = np.array([partitions])
    if not isinstance(partitions, int):
        of_rows = partitions if order is None else partitions[order]
    plan = _Plan(layout=layout, order=order, partitions=of_rows, timestamps=timestamps)
    ends = np.concatenate((_ZERO, np.cumsum(sizes)))
    bounds = _bounds(ends, of_rows, limit.max_bytes, max_records)
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
    made, oversize = few_records.few_records(
        records,
        timestamps_ms,
        partitions,
        headers,
        max_bytes=limit.max_bytes - HEADER_BYTES,
        max_records=limit.max_records,
    )
    batches = []
    for each in made:
        payload, used = _packed(memoryview(each.payload), compression)
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


def _ordered(
    sizes: Rows, partitions: int | npt.NDArray[np.integer], max_bytes: int
) -> tuple[Rows | None, tuple[OversizeRecord, ...]]:
    """Return the records that fit, partition by partition, and those that do not.

    None instead of an order is all records as they are.
    """
    order = None
    if not isinstance(partitions, int):
        # Sorting 16-bit numbers is a radix sort.
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
    """Return where batches start, and where the last one ends; one search for each."""
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
    """Which records come in which order; `partitions` and `timestamps` are in that order already.

    `partitions` and `timestamps` are of shape (1,) where all are alike; an `order` of None is that
    of the layout.
    """

    layout: RecordLayout
    order: Rows | None
    partitions: npt.NDArray[np.integer]
    timestamps: Rows

    def built(self, bounds: Rows, compression: Compression) -> list[RecordBatch]:
        """Build neighbouring batches at once.

        So much at a time that what numpy computes stays in the processor's cache, and that the
        memory of one portion can serve the next.
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
            rows, layout = np.arange(first, last), self.layout.between(first, last)
        else:
            rows = self.order[first:last]
            layout = self.layout.take(rows)
        data, sizes = layout.written(deltas, offsets)
        payloads = memoryview(data).cast("B")
        ends = np.cumsum(np.add.reduceat(sizes, bounds[:-1] - first)).tolist()
        places = self.partitions[bounds[:-1]] if len(self.partitions) > 1 else self.partitions
        batches = []
        for index, (start, end) in enumerate(pairwise([0, *ends])):
            payload, used = _packed(payloads[start:end], compression)
            batches.append(
                RecordBatch(
                    partition=int(places[index if len(places) > 1 else 0]),
                    rows=rows[bounds[index] - first : bounds[index + 1] - first],
                    payload=payload,
                    compression=used,
                    first_timestamp_ms=int(starts[index]),
                    max_timestamp_ms=int(largest[index]),
                    uncompressed_bytes=HEADER_BYTES + end - start,
                )
            )
        return batches


def _packed(
    payload: memoryview, compression: Compression
) -> tuple[bytes | memoryview, Compression]:
    """Compress where that helps."""
    packed = compressed(payload, compression)
    if len(packed) < len(payload):
        return packed, compression
    return payload, Compression.NONE
