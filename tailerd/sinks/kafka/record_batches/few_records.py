"""Encode the records of Kafka record batches one by one: faster than kernels for few records.

The layout is that of `record_layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.base import Header, Records
from tailerd.records.short_bytes import varint

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


def few_records(
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
    of_rows = [partitions] * count if isinstance(partitions, int) else partitions.tolist()
    by_partition: dict[int, list[int]] = {}
    oversize: list[tuple[int, int]] = []
    for row, partition in enumerate(of_rows):
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
    for place, row in enumerate(rows):
        record = _record(times[row] - times[rows[start]], place - start, fields[row])
        if pieces and (size + len(record) > max_bytes or len(pieces) == max_records):
            yield _cut(partition, rows[start:place], pieces, times)
            start, size, pieces = place, 0, []
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
