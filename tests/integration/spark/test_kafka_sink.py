"""Encoded records of Spark's queries, written by executors to a real broker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailerd.spark.kafka.delivered import BatchDelivery
from tailerd.spark.kafka.group_sink import KafkaGroupSink
from tests.integration.spark.encoded import Rows, config
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.topics import Topics

pytestmark = pytest.mark.spark

DELIVERIES = ["at-least-once", "exactly-once"]


class Group:
    """A sink over one table `orders` unless said else, with what it told."""

    def __init__(self, broker: Broker, folder: Path, topic: str, **more: Any) -> None:
        self.told: list[BatchDelivery] = []
        self.topic = topic
        self._broker = broker
        self._folder = folder
        sinks = more.pop("sinks", None) or {"orders": config(broker.plain, topic, **more)}
        self.sink = KafkaGroupSink(sinks, folder, f"g-{topic}", on_delivered=self.told.append)

    def records(self, topic: str | None = None, **options: Any) -> list[Record]:
        return read_topic(self._broker.plain, topic or self.topic, **options)


@contextmanager
def started(group: Group) -> Iterator[KafkaGroupSink]:
    group.sink.recover()
    try:
        yield group.sink
    finally:
        group.sink.close()


def by_key(records: list[Record]) -> dict[bytes | None, list[bytes | None]]:
    found = defaultdict(list)
    for record in records:
        found[record.key].append(record.value)
    return found


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_changes_of_a_key_come_in_the_order_of_commits_from_many_partitions(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    topic = topics.create(partitions=3)
    rows = Rows()
    for version in range(1, 21):
        rows.add(version, range(50), topic=topic)
    group = Group(kafka_broker, tmp_path, topic, delivery=delivery)
    with started(group) as sink:
        sink.write(rows.frame(spark, partitions=5), 0)

    records = group.records()

    assert by_key(records) == {
        b"%d" % key: [b"v%d-%d" % (version, key) for version in range(1, 21)] for key in range(50)
    }
    assert len({record.partition for record in records}) == 3
    [told] = group.told
    assert told.tables["orders"].rows == Counter(insert=1000)
    assert (told.tables["orders"].first_version, told.tables["orders"].last_version) == (1, 20)
