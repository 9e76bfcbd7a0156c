"""Topics change while they are written: more partitions, larger records, on both engines."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.errors import ConfigError, SinkError
from tailerd.sinks.kafka import remote_writer
from tailerd.sinks.kafka.acknowledgements import SendWindow
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.remote_writer import RecordsWriter
from tailerd.sinks.kafka.session import WrittenRecords
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.sinks.kafka.topics import TopicFacts
from tailerd.sinks.kafka.topics import Topics as KnownTopics
from tailerd.sinks.resources import pipeline_identity
from tests.contracts.test_sink import delivery, offset
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.attack]


def section(broker: Broker, topic: str, **fields: Any) -> KafkaSinkConfig:
    start = {"kind": "kafka", "bootstrap_servers": broker.plain, "topic": topic}
    return KafkaSinkConfig.model_validate({**start, **fields})


def raise_partitions(broker: Broker, topic: str, count: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.plain)
    admin.create_partitions({topic: NewPartitions(count)})
    # The broker answers before all of it knows.
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == count)
    admin.close()


def raise_size(broker: Broker, topic: str, size: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.plain)
    settings = {"max.message.bytes": str(size)}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)])
    admin.close()


class Executor:
    """What one process of an engine does, in this process: deliveries, one after the other."""

    def __init__(self, broker: Broker, topic: str, **fields: Any) -> None:
        # The daemon does not know topics that a column chooses.
        to = {"partition": {"column": "p"}, "timestamp": "delivery", **fields}
        self.config = section(broker, "{column:t}", **to)
        self.topic = topic
        self.version = 0

    def run(
        self, partition: int = 0, size: int = 10, facts: tuple[TopicFacts, ...] = ()
    ) -> WrittenRecords:
        self.version += 1
        writer = RecordsWriter(
            config=self.config,
            pipeline=pipeline_identity(self.config, "orders", daemon="tailerd"),
            start=offset(self.version),
            end=offset(self.version + 1),
            facts=facts,
            window=SendWindow(1 << 20, seconds=1.0),
            transaction=None,
        )
        given: dict[str, list[Any]] = {"t": [self.topic], "p": [partition], "text": ["x" * size]}
        there: RecordsWriter = pickle.loads(pickle.dumps(writer))
        return there(iter([rows(self.version, given)]))


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    remote_writer._schemas.clear()


@pytest.mark.parametrize("driver", ["knows-nothing", "knows-old-facts"])
def test_an_executor_writes_partitions_that_the_topic_got_since(
    kafka_broker: Broker, topics: Topics, driver: str
) -> None:
    topic = topics.create(partitions=3)
    executor = Executor(kafka_broker, topic)
    before = executor.run(partition=2).facts
    assert [each.partitions for each in before] == [3]
    raise_partitions(kafka_broker, topic, 6)
    facts = before if driver == "knows-old-facts" else ()
    after = executor.run(partition=5, facts=facts).facts
    assert [each.partitions for each in after] == [6]
    assert sorted(each.partition for each in read_topic(kafka_broker.plain, topic)) == [2, 5]


def test_a_partition_that_is_still_not_there_is_refused(
    kafka_broker: Broker, topics: Topics
) -> None:
    topic = topics.create(partitions=3)
    with pytest.raises(ConfigError, match=r"partition 5.*0 to 2"):
        Executor(kafka_broker, topic).run(partition=5)


def test_an_executor_writes_records_that_the_topic_takes_since(
    kafka_broker: Broker, topics: Topics
) -> None:
    topic = topics.create(config={"max.message.bytes": "2000"})
    executor = Executor(kafka_broker, topic)
    executor.run()
    raise_size(kafka_broker, topic, 100_000)
    executor.run(size=5000)
    sizes = [len(each.value or b"") > 5000 for each in read_topic(kafka_broker.plain, topic)]
    assert sizes == [False, True]


def test_facts_are_asked_for_again_at_an_age_and_what_was_learned_is_told_to_nobody(
    kafka_broker: Broker, topics: Topics
) -> None:
    topic = topics.create(partitions=3)
    driver = KnownTopics(Connection(section(kafka_broker, topic)))
    executor = KnownTopics(Connection(section(kafka_broker, topic)))
    executor.learn(driver.ensure({topic: None}).values())
    # Else reports would keep the driver's facts young for ever.
    assert executor.requested == ()
    raise_partitions(kafka_broker, topic, 6)
    assert not driver.renew(3600)
    assert driver.known[0].partitions == 3
    assert driver.renew()
    assert driver.known[0].partitions == 6
    assert not driver.renew(), "nothing changed since"


def rows(version: int, columns: Mapping[str, list[Any]]) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.record_batch({name: pa.array(values) for name, values in columns.items()}),
        change_type=ChangeType.INSERT,
        version=Version(version),
        timestamp_us=10**15,
        change_source=ChangeSourceKind.FILES,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )


@pytest.fixture
async def arrow(kafka_broker: Broker, topics: Topics) -> AsyncIterator[tuple[KafkaSink, str]]:
    topic = topics.create(partitions=3, config={"max.message.bytes": "2000"})
    dead = topics.create()
    config = section(
        kafka_broker,
        topic,
        partition={"column": "p"},
        timestamp="delivery",
        on_oversize="dead-letter",
        dead_letter_topic=dead,
    )
    sink = KafkaSink(config, table=f"orders-{uuid.uuid4().hex[:8]}")
    await sink.resume(offset(0))
    await sink.write(delivery(0, rows(0, {"p": [2], "text": ["a"]})))
    yield sink, topic
    await sink.aclose()


async def test_the_arrow_engine_writes_partitions_that_the_topic_got_since(
    kafka_broker: Broker, arrow: tuple[KafkaSink, str]
) -> None:
    sink, topic = arrow
    raise_partitions(kafka_broker, topic, 6)
    await sink.write(delivery(1, rows(1, {"p": [5], "text": ["b"]})))
    assert sorted(each.partition for each in read_topic(kafka_broker.plain, topic)) == [2, 5]


async def test_the_arrow_engine_puts_nothing_aside_that_the_topic_takes_since(
    kafka_broker: Broker, arrow: tuple[KafkaSink, str]
) -> None:
    sink, topic = arrow
    raise_size(kafka_broker, topic, 100_000)
    large = rows(1, {"p": [1], "text": ["b" * 5000]})
    with pytest.raises(SinkError, match="takes larger records since") as caught:
        await sink.write(delivery(1, large))
    assert caught.value.retryable
    await sink.resume(offset(1))
    await sink.write(delivery(1, large))
    assert max(len(each.value or b"") for each in read_topic(kafka_broker.plain, topic)) > 5000
