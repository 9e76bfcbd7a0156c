"""A request to write records to one topic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.base import Header, Records
from tailerd.sinks.topics.control_records import ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Records of one topic.

    Attributes:
        topic: Their destination.
        records: Keys and values, in the order in which they must be read.
        partitions: One for all records, or one for each.
        timestamps_ms: One for all records, or one for each; milliseconds since the epoch.
        headers: With one value for all records, or a value for each.
        max_bytes: The largest batch the topic accepts, header included, without compression.
    """

    topic: str
    records: Records
    partitions: int | npt.NDArray[np.integer]
    timestamps_ms: int | npt.NDArray[np.int64]
    headers: tuple[Header, ...] = ()
    max_bytes: int

    def slice(self, start: int, length: int) -> ProduceRequest:
        """Return `length` records from `start` on, with their per-record values; no copy."""
        keys, end = self.records.keys, start + length
        partitions, times = self.partitions, self.timestamps_ms
        return replace(
            self,
            records=Records(
                keys=None if keys is None else keys.slice(start, length),
                values=self.records.values.slice(start, length),
            ),
            partitions=partitions if isinstance(partitions, int) else partitions[start:end],
            timestamps_ms=times if isinstance(times, int) else times[start:end],
            headers=tuple(header.slice(start, length) for header in self.headers),
        )


def control_record(record: ControlRecord, *, max_bytes: int) -> ProduceRequest:
    """Return the request for a control record; `max_bytes` as in `ProduceRequest`."""
    key, value = ([None if t is None else t.encode()] for t in (record.key, record.value))
    return ProduceRequest(
        topic=record.topic,
        records=Records(keys=pa.array(key, pa.binary()), values=pa.array(value, pa.binary())),
        partitions=record.partition,
        timestamps_ms=record.timestamp_ms,
        max_bytes=max_bytes,
    )
