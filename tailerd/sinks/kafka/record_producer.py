"""Send single records through `KafkaProducer.send`: slow, but uses only its public interface."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaProducer
from kafka.producer.future import RecordMetadata

from tailerd.records.base import Header, Records
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.record_batch import HEADER_BYTES, OversizeRecord

_RECORD_OVERHEAD_BYTES = 21
"""The client's own upper bound of a record's size in addition to key and value."""


class RecordProducer:
    """A `Producer` that sends single records."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def send(
        self, request: ProduceRequest, acknowledgements: Acknowledgements
    ) -> tuple[OversizeRecord, ...]:
        """Send the records that fit, in order."""
        records = request.records
        sizes = _sizes(records, request.headers)
        keys = None if records.keys is None else records.keys.to_pylist()
        values = records.values.to_pylist()
        oversize: list[OversizeRecord] = []
        for row, size in enumerate(sizes.tolist()):
            if size > request.max_bytes:
                oversize.append(OversizeRecord(row=row, size_bytes=size))
                continue
            acknowledgements.reserve(size)
            self._send(
                request,
                row,
                size,
                None if keys is None else keys[row],
                values[row],
                acknowledgements,
            )
        return tuple(oversize)

    def _send(
        self,
        request: ProduceRequest,
        row: int,
        size: int,
        key: bytes | None,
        value: bytes | None,
        acknowledgements: Acknowledgements,
    ) -> None:
        partitions, times = request.partitions, request.timestamps_ms

        def note_success(_: RecordMetadata) -> None:
            acknowledgements.done(size, None)

        def note_failure(error: Exception) -> None:
            acknowledgements.done(size, error)

        try:
            future = self._producer.send(
                request.topic,
                value=value,
                key=key,
                headers=_headers(request.headers, row),
                partition=partitions if isinstance(partitions, int) else int(partitions[row]),
                timestamp_ms=times if isinstance(times, int) else int(times[row]),
            )
        except BaseException:
            acknowledgements.done(size, None)
            raise
        future.add_callback(note_success)
        future.add_errback(note_failure)


def _headers(headers: tuple[Header, ...], row: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for header in headers:
        value = header.value
        if isinstance(value, pa.Array):
            value = value[row].as_py()
        # The client does not support headers with a null value.
        found.append((header.name, value.encode() if isinstance(value, str) else value or b""))
    return found


def _sizes(records: Records, headers: tuple[Header, ...]) -> np.ndarray:
    """Return for each record an upper bound of the size of a batch with only that record."""
    sizes = np.full(len(records), HEADER_BYTES + _RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for column in (records.keys, records.values):
        if column is not None:
            sizes += _lengths(column)
    for header in headers:
        sizes += len(header.name.encode()) + 2 * _RECORD_OVERHEAD_BYTES
        if isinstance(header.value, pa.Array):
            sizes += _lengths(header.value)
        elif header.value is not None:
            sizes += len(header.value)
    return sizes


def _lengths(column: pa.Array) -> np.ndarray:
    lengths = pc.binary_length(column).fill_null(0)
    return np.asarray(lengths, dtype=np.int64)
