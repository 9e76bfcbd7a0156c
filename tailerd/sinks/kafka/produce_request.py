"""Records on their way to one topic, and what both kinds of producers do with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.base import Header, Records
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.record_batches.record_batch import OversizeRecord
from tailerd.sinks.topics.control_records import ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Records of one topic.

    Attributes:
        topic: Where they go.
        records: Keys and values, in the order in which they must be read.
        partitions: Of all records, or of each.
        timestamps_ms: Of all records, or of each; milliseconds since the epoch.
        headers: Of every record, or with a value of each.
        max_bytes: The largest batch the topic takes, header included, without compression.
    """

    topic: str
    records: Records
    partitions: int | npt.NDArray[np.integer]
    timestamps_ms: int | npt.NDArray[np.int64]
    headers: tuple[Header, ...] = ()
    max_bytes: int

    def slice(self, start: int, length: int) -> ProduceRequest:
        """Return `length` records from `start` on, with all that stands by record; no copy."""
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
    """Return a control record as what producers send; `max_bytes` as of `ProduceRequest`."""
    key, value = ([None if t is None else t.encode()] for t in (record.key, record.value))
    return ProduceRequest(
        topic=record.topic,
        records=Records(keys=pa.array(key, pa.binary()), values=pa.array(value, pa.binary())),
        partitions=record.partition,
        timestamps_ms=record.timestamp_ms,
        max_bytes=max_bytes,
    )


class Producer(Protocol):
    """Hands records to kafka-python. Blocking; used by one thread at a time.

    Records of one partition arrive in the order in which they were sent. Inside a transaction they
    belong to it.
    """

    def send(
        self, outgoing: ProduceRequest, acknowledgements: Acknowledgements
    ) -> tuple[OversizeRecord, ...]:
        """Hand over all records but those that are too large, which are returned.

        Returns when everything is handed over, waiting where too much is in flight;
        `acknowledgements` hears of the rest.

        Raises:
            TailerdError: Records sent before have failed; some of these may be on their way.
        """
        ...
