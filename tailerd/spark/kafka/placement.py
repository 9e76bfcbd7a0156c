"""Which task writes which records: each Kafka partition has one, and gets them in order.

The order of a key needs that. So does a shared transaction: brokers number the records of a
partition, and would take the first ones of a second writer for repetitions of the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from tailerd.changefeed.change_batch import COMMIT_VERSION
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.topics import TopicFacts, Topics
from tailerd.spark.arrow_functions import column_of
from tailerd.spark.encoded_records import KEY, ORDER, PARTITION, TABLE, TOPIC
from tailerd.spark.kafka.blame import blaming
from tailerd.spark.kafka.record_pieces import Partitioner, by_table_and_topic
from tailerd.spark.kafka.topic_shapes import TopicShapes

_ROW = "row"


@dataclass(slots=True, kw_only=True)
class Placement:
    """Gives encoded records the partition they go to. Picklable.

    The same records in the same batches get the same partitions: Spark may ask again.

    Attributes:
        sinks: The section of each table.
        facts: Topics that are known; about others brokers are asked.
        batch_id: Spark's number of the micro-batch.
    """

    sinks: Mapping[str, KafkaSinkConfig]
    facts: tuple[TopicFacts, ...]
    batch_id: int
    _shapes: TopicShapes | None = field(default=None, init=False)

    def of(self, tables: pa.Array, topics: pa.Array, named: pa.Array, keys: pa.Array) -> pa.Array:
        """Return the partition of each record.

        Raises:
            ConfigError: One is named that the topic does not have.
            SinkError: Brokers were asked about a topic, and it cannot be written.
        """
        shapes = self._opened()
        partitioner = Partitioner(batch_id=self.batch_id)
        partitions = np.zeros(len(topics), dtype=np.int32)
        columns = {
            TABLE: tables,
            TOPIC: topics,
            PARTITION: named,
            KEY: keys,
            _ROW: pa.array(np.arange(len(topics))),
        }
        for table, topic, part in by_table_and_topic(pa.record_batch(columns)):
            with blaming(table):
                count = shapes.shape_of(table, topic).partitions
                chosen = partitioner.partitions(topic, part[PARTITION], part[KEY], count)
            partitions[np.asarray(part[_ROW])] = chosen
        return pa.array(partitions)

    def _opened(self) -> TopicShapes:
        if self._shapes is None:
            topics = Topics(Connection(next(iter(self.sinks.values()))))
            topics.learn(self.facts)
            self._shapes = TopicShapes(self.sinks, topics)
        return self._shapes


def placed(records: DataFrame, placement: Placement, tasks: int) -> DataFrame:
    """Return encoded records with each Kafka partition in one of `tasks`, each table in order."""
    columns = (sql.col(name) for name in (TABLE, TOPIC, PARTITION, KEY))
    return (
        records.withColumn(PARTITION, column_of(placement.of, "int", *columns))
        .repartition(tasks, TOPIC, PARTITION)
        .sortWithinPartitions(TABLE, COMMIT_VERSION, ORDER)
    )
