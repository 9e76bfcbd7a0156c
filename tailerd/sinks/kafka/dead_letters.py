"""Dead letters for records that are larger than their topic accepts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tailerd.errors import SinkError, SinkRefusedError
from tailerd.records.base import Header
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.record_batch import HEADER_BYTES, OversizeRecord
from tailerd.sinks.topics.dead_letters import OversizeRecords

_ROOM_BYTES = HEADER_BYTES + 1024
"""Overhead of a dead letter in addition to key and value, headers included."""


def make_dead_letters(
    piece: ProduceRequest,
    oversize: tuple[OversizeRecord, ...],
    versions: Sequence[int],
    *,
    config: KafkaSinkConfig,
    table: str,
    get_max_bytes: Callable[[str], int],
) -> ProduceRequest:
    """Return the dead letters for records that are too large.

    Args:
        piece: The request that contains them.
        oversize: The records; at least one.
        versions: The commit version of each of them.
        config: Enables or disables dead letters.
        table: Name of the table.
        get_max_bytes: Returns the largest batch that a topic accepts.

    Raises:
        SinkRefusedError: The configuration does not enable dead letters.
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
    refused = OversizeRecords(
        table=table,
        topic=piece.topic,
        limit_bytes=piece.max_bytes,
        records=piece.records.take(rows),
        versions=versions,
        sizes_bytes=[each.size_bytes for each in oversize],
    )
    name = config.name_topic(topic, table)
    max_bytes = get_max_bytes(name)
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
    """Return the error for records that exceed a topic's previous limit but not its new one.

    Later records are already in flight, so they cannot be sent now: the delivery is repeated.
    """
    return SinkError(f"The topic {topic} takes larger records since the delivery began.")
