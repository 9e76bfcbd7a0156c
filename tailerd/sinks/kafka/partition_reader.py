"""Read a partition from a consumer's position to an offset. Blocking."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from tailerd.errors import SinkError

_POLL_MS = 50
_SILENCE_SECONDS = 30.0
# A poll returns within a moment. If one took longer, the machine stood still, not the brokers.
_LONGEST_POLL_SECONDS = 1.0


def read_partition(
    consumer: KafkaConsumer,
    partition: TopicPartition,
    until: int,
    *,
    max_records: int | None = None,
    abandoned: threading.Event | None = None,
) -> Iterator[list[Any]]:
    """Yield the records from the consumer's position to an offset, in their order.

    The position may pass offsets without a record: a transaction ends with a marker.

    Args:
        consumer: The partition is assigned to it.
        partition: Where it reads.
        until: The first offset that is not read.
        max_records: The most records of one list.
        abandoned: Set by another thread to end the wait for records.

    Raises:
        SinkError: No record came for half a minute, or the read was abandoned.
    """
    silent_seconds = 0.0
    while (position := int(consumer.position(partition))) < until:
        began = time.monotonic()
        polled = consumer.poll(_POLL_MS, max_records=max_records).get(partition, ())
        if records := [record for record in polled if record.offset < until]:
            yield records
        if int(consumer.position(partition)) > position:
            silent_seconds = 0.0
            continue
        silent_seconds += min(time.monotonic() - began, _LONGEST_POLL_SECONDS)
        if silent_seconds > _SILENCE_SECONDS or (abandoned is not None and abandoned.is_set()):
            raise SinkError(
                f"The topic {partition.topic} returned no records for {silent_seconds:.0f} s.",
                remedy="Check that the brokers are running and reachable.",
            )
