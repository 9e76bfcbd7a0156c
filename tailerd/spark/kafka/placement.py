"""Which task writes which records: each Kafka partition has one, and gets them in order.

The order of a key needs that. So does a shared transaction: brokers number the records of a
partition, and would take the first ones of a second writer for repetitions of the first one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from tailerd.changefeed.change_batch import COMMIT_VERSION
from tailerd.errors import ConfigError, TailerdError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.topics import TopicFacts, Topics
from tailerd.spark.arrow_functions import map_batches
from tailerd.spark.attribution import attributed_to
from tailerd.spark.encoded_records import PARTITION, RecordPiece
from tailerd.spark.kafka.record_pieces import Integers, Partitioner
from tailerd.spark.kafka.topic_shapes import TopicShapes
from tailerd.spark.packed_records import ORDER, PACKED_SCHEMA, TABLE, TOPIC, packed, unpacked


@dataclass(slots=True, kw_only=True)
class Placement:
    """Cuts packed records by the partitions they go to. Picklable.

    The same records in the same batches get the same partitions: Spark may ask again.

    Attributes:
        sinks: The section of each table.
        faults: Tables whose records cannot be written, and why.
        facts: Topics that are known; about others brokers are asked.
        batch_id: Spark's number of the micro-batch.
    """

    sinks: Mapping[str, KafkaSinkConfig]
    faults: Mapping[str, TailerdError]
    facts: tuple[TopicFacts, ...]
    batch_id: int
    _shapes: TopicShapes | None = field(default=None, init=False)

    def split(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut the pieces of a task, so that the records of each go to one partition.

        Raises:
            ConfigError: A partition is named that the topic does not have, or a table cannot be
                written at all.
            SinkError: Brokers were asked about a topic, and it cannot be written.
        """
        partitioner = Partitioner(batch_id=self.batch_id)
        return packed(
            part for piece in unpacked(batches) for part in self._parts(piece, partitioner)
        )

    def _parts(self, piece: RecordPiece, partitioner: Partitioner) -> Iterator[RecordPiece]:
        records = piece.records
        with attributed_to(piece.table):
            try:
                chosen = self._chosen(piece, partitioner)
            except ConfigError:
                # The topic may have partitions since that it had not.
                if not self._opened().renew():
                    raise
                chosen = self._chosen(piece, partitioner)
        for partition in np.unique(chosen).tolist():
            places = pa.array(np.flatnonzero(chosen == partition))
            headers = tuple(header.take(places) for header in piece.headers)
            own = records.take(places)
            # Named from here on: without a key, another task would choose another one.
            yield replace(piece, records=own, headers=headers, partition=partition)

    def _chosen(self, piece: RecordPiece, partitioner: Partitioner) -> Integers:
        count = self._opened().shape_of(piece.table, piece.topic).partitions
        return np.broadcast_to(partitioner.of_piece(piece, count), piece.records.num_rows)

    def _opened(self) -> TopicShapes:
        if self._shapes is None:
            topics = Topics(Connection(next(iter(self.sinks.values()))))
            topics.learn(self.facts)
            self._shapes = TopicShapes(self.sinks, topics, self.faults)
        return self._shapes


def placed(records: DataFrame, placement: Placement, tasks: int) -> DataFrame:
    """Return packed records with each Kafka partition in one of `tasks`, each table in order."""
    return (
        map_batches(records, placement.split, PACKED_SCHEMA)
        .repartition(tasks, TOPIC, PARTITION)
        .sortWithinPartitions(TABLE, COMMIT_VERSION, ORDER)
    )
