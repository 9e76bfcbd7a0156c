"""From pieces of encoded records to what producers send. Pure but for a counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.records.base import Header, Records
from tailerd.sinks.kafka.batch_coalescing import Versioned
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.partitioning import RUN_RECORDS, assign_partitions
from tailerd.sinks.kafka.routing import TopicShape, no_partition
from tailerd.spark.encoded_records import KEY, PARTITION, VALUE, RecordPiece

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

    def of_piece(self, piece: RecordPiece, count: int) -> int | Integers:
        """Return the partition of all records of a piece, or of each.

        Args:
            piece: Encoded records.
            count: How many partitions the topic has.

        Raises:
            ConfigError: A named one is not among them.
        """
        if piece.partition is None:
            return self.partitions(piece.topic, piece.records[PARTITION], piece.records[KEY], count)
        if piece.partition >= count:
            raise no_partition(piece.partition, piece.topic, count)
        return piece.partition

    def partitions(self, topic: str, named: pa.Array, keys: pa.Array, count: int) -> Integers:
        """Return the partition of each record of a topic.

        Args:
            topic: Its name.
            named: What a column says; null: the key chooses.
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


def outgoing_piece(
    piece: RecordPiece,
    *,
    config: KafkaSinkConfig,
    partitioner: Partitioner,
    shape: TopicShape,
    more_headers: Mapping[str, bytes],
    now_ms: int,
) -> Versioned:
    """Return the records of a piece as producers take them.

    Args:
        piece: Encoded records.
        config: The table's sink.
        partitioner: Of this task.
        shape: What is known of the topic.
        more_headers: Beside those that the records have.
        now_ms: Milliseconds since the epoch.

    Raises:
        ConfigError: A partition is named that the topic does not have.
        SinkRefusedError: The topic would not keep rows as old as these.
        CommitAheadError: It takes no rows dated so far ahead yet.
    """
    time_ms = piece.timestamp_us // 1000 if config.timestamp == "commit" else now_ms
    shape.check_time(piece.topic, time_ms, now_ms, version=piece.version)
    keys = piece.records[KEY]
    extra = tuple(Header(name=name, value=value) for name, value in more_headers.items())
    return Versioned(
        outgoing=ProduceRequest(
            topic=piece.topic,
            records=Records(
                keys=None if keys.null_count == len(keys) else keys, values=piece.records[VALUE]
            ),
            partitions=partitioner.of_piece(piece, shape.partitions),
            timestamps_ms=time_ms,
            headers=piece.headers + extra,
            max_bytes=shape.max_bytes,
        ),
        versions=piece.version,
    )
