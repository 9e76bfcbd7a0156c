"""From batches of encoded records to what producers send. Pure but for a counter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import COMMIT_TIMESTAMP, COMMIT_VERSION
from tailerd.encoding.partitioning import RUN_RECORDS, assign_partitions
from tailerd.encoding.record_layout import Header
from tailerd.encoding.records import Records
from tailerd.errors import BugError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.merging import Versioned
from tailerd.sinks.kafka.outgoing import Outgoing
from tailerd.sinks.kafka.routing import TopicShape, no_partition, too_old
from tailerd.spark.encoded_records import HEADERS, KEY, PARTITION, VALUE

BATCH_HEADER = "tailerd.batch"
"""Of each record delivered at least once: group and number of its micro-batch."""

Integers = npt.NDArray[np.integer]


@dataclass(slots=True, kw_only=True)
class Partitioner:
    """Chooses partitions of records by key, as the Arrow engine does.

    Records without a key fill partitions in turns. Where the turns begin depends on the number of
    the micro-batch alone: the same batch gives the same choice, and the next one goes on.

    Attributes:
        batch_id: Spark's number of the micro-batch.
    """

    batch_id: int
    _keyless: dict[str, int] = field(default_factory=dict)

    def partitions(self, topic: str, named: pa.Array, keys: pa.Array, count: int) -> Integers:
        """Return the partition of each record of a topic.

        Args:
            topic: Its name.
            named: What configuration or a column says; null: the key chooses.
            keys: `binary`, with nulls.
            count: How many partitions the topic has.

        Raises:
            ConfigError: A named one is not among them.
        """
        if named.null_count < len(named):
            highest = pc.max(named).as_py()
            if highest >= count:
                raise no_partition(highest, topic, count)
            if not named.null_count:
                return np.asarray(named)
        before = self._keyless.get(topic, self.batch_id * RUN_RECORDS)
        chosen = assign_partitions(
            None if keys.null_count == len(keys) else keys,
            len(keys),
            count,
            keyless_before=before,
        )
        self._keyless[topic] = before + chosen.num_keyless
        if named.null_count == len(named):
            return chosen.partitions
        return np.asarray(pc.coalesce(named, pa.array(chosen.partitions, pa.int32())))


def outgoing_pieces(
    table: str,
    topic: str,
    records: pa.RecordBatch,
    *,
    config: KafkaSinkConfig,
    partitioner: Partitioner,
    shape_of: Callable[[str], TopicShape],
    more_headers: Mapping[str, bytes],
    now_ms: int,
) -> Iterator[Versioned]:
    """Yield the records of one table and topic as producers take them, in their order.

    Args:
        table, topic, records: Encoded records, and what they all have.
        config: The table's sink.
        partitioner: Of this task.
        shape_of: Says what is known of a topic; may raise.
        more_headers: Beside those that the records have.
        now_ms: Milliseconds since the epoch.

    Raises:
        ConfigError: A partition is named that the topic does not have.
        SinkRefusedError: The topic would not keep rows as old as these.
    """
    shape = shape_of(topic)
    times = _times(table, topic, records, config, shape, now_ms)
    partitions = partitioner.partitions(topic, records[PARTITION], records[KEY], shape.partitions)
    versions = np.asarray(records[COMMIT_VERSION])
    extra = tuple(Header(name=name, value=value) for name, value in more_headers.items())
    for start, end in _runs(records, versions):
        keys = records[KEY].slice(start, end - start)
        yield Versioned(
            outgoing=Outgoing(
                topic=topic,
                records=Records(
                    keys=None if keys.null_count == len(keys) else keys,
                    values=records[VALUE].slice(start, end - start),
                ),
                partitions=partitions[start:end],
                timestamps_ms=times if isinstance(times, int) else times[start:end],
                headers=_headers(records[HEADERS].slice(start, end - start)) + extra,
                max_bytes=shape.max_bytes,
            ),
            versions=versions[start:end],
        )


def _times(
    table: str,
    topic: str,
    records: pa.RecordBatch,
    config: KafkaSinkConfig,
    shape: TopicShape,
    now_ms: int,
) -> int | npt.NDArray[np.int64]:
    if config.timestamp != "commit":
        return now_ms
    times_us = np.asarray(records[COMMIT_TIMESTAMP].cast(pa.int64()))
    oldest = int(np.argmin(times_us))
    if shape.retention_ms is not None and now_ms - times_us[oldest] // 1000 > shape.retention_ms:
        version = records[COMMIT_VERSION][oldest].as_py()
        raise too_old(version, int(times_us[oldest]), topic, shape.retention_ms)
    return times_us // 1000


def _runs(records: pa.RecordBatch, versions: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of records with equal headers: those of a commit, or all without any."""
    count = records.num_rows
    if records[HEADERS].null_count == count:
        yield 0, count
        return
    ends = [*(np.flatnonzero(np.diff(versions)) + 1).tolist(), count]
    yield from zip([0, *ends], ends, strict=False)


def _headers(headers: pa.Array) -> tuple[Header, ...]:
    """Return the headers that all records have."""
    first = headers[0].as_py()
    if first is None:
        return ()
    if not headers.slice(1).equals(headers.slice(0, len(headers) - 1)):
        raise BugError("Records of one commit have different headers.")
    return tuple(Header(name=each["key"], value=each["value"]) for each in first)
