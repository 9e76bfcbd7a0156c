"""What becomes of records that are larger than their topic takes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tailerd.errors import SinkError, SinkRefusedError
from tailerd.records.base import Header
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.record_batch import HEADER_BYTES, OversizeRecord
from tailerd.sinks.topics.dead_letters import RefusedRecords

_ROOM_BYTES = HEADER_BYTES + 1024
"""What stands around key and value of a dead letter, headers included."""


def dead_letters_of(
    piece: ProduceRequest,
    oversize: tuple[OversizeRecord, ...],
    versions: Sequence[int],
    *,
    config: KafkaSinkConfig,
    table: str,
    max_bytes_of: Callable[[str], int],
) -> ProduceRequest:
    """Return what is written instead of records that are too large.

    Args:
        piece: What was sent but for these.
        oversize: They; at least one.
        versions: For each the version of its commit.
        config: Says whether anything is written instead.
        table: Name of the table.
        max_bytes_of: The largest batch a topic takes.

    Raises:
        SinkRefusedError: The configuration wants no dead letters.
    """
    topic = config.dead_letter_topic
    if config.on_oversize == "fail" or topic is None:
        raise SinkRefusedError(
            f"A row of version {versions[0]} of {table} makes a record of"
            f" {oversize[0].size_bytes} bytes, and the topic {piece.topic} takes"
            f" {piece.max_bytes}.",
            remedy="Raise max.message.bytes of the topic and max_request_size under `producer`,"
            " or set on_oversize to dead-letter.",
        )
    rows = np.array([each.row for each in oversize], dtype=np.int64)
    refused = RefusedRecords(
        table=table,
        topic=piece.topic,
        limit_bytes=piece.max_bytes,
        records=piece.records.take(rows),
        versions=versions,
        sizes_bytes=[each.size_bytes for each in oversize],
    )
    name = config.topic_of(topic, table)
    max_bytes = max_bytes_of(name)
    times = piece.timestamps_ms
    return ProduceRequest(
        topic=name,
        records=refused.letters(max_bytes, _ROOM_BYTES),
        partitions=0,
        timestamps_ms=times if isinstance(times, int) else times[rows],
        headers=tuple(_header(*reason) for reason in refused.reasons().items()),
        max_bytes=max_bytes,
    )


def _header(name: str, value: str | Sequence[int]) -> Header:
    if isinstance(value, str):
        return Header(name=name, value=value.encode())
    return Header(name=name, value=pa.array([str(each).encode() for each in value], pa.binary()))


def takes_more_now(topic: str) -> SinkError:
    """Return the error for records that were too large for what was known of a topic before.

    What came behind them is on its way, so that they cannot be sent now: all is tried again.
    """
    return SinkError(f"The topic {topic} takes larger records since the delivery began.")
