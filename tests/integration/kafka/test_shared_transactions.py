"""A transaction that several processes write into, and a driver that dies at each of its steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from kafka.errors import KafkaError

from tailerd.errors import SinkFencedError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.spark.delivered_batch import DeliveredBatch
from tailerd.spark.kafka.batch_transaction import BatchTransaction
from tests.integration.kafka import transaction_program
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
COMPACTED = {"cleanup.policy": "compact"}


def run(broker: Broker, *arguments: str, die_after: float = 0.0) -> str:
    """Run the program; return what it said, or `died`."""
    process = subprocess.run(
        [sys.executable, "-m", transaction_program.__name__, broker.plain, *arguments],
        cwd=ROOT,
        env={**os.environ, "DIE_AFTER": str(die_after)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode in (0, 9), process.stderr
    return process.stdout.strip() or "died"


def keys_of(batch: int) -> Counter[bytes | None]:
    return Counter(
        b"%d-%d-%d" % (batch, writer, number)
        for writer in range(transaction_program.WRITERS)
        for number in range(transaction_program.RECORDS)
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("die_at", "then"),
    [("produced", "written"), ("recorded", "written"), ("committed", "repeated")],
)
def test_a_micro_batch_counts_once_wherever_its_driver_dies(
    kafka_broker: Broker, topics: Topics, die_at: str, then: str
) -> None:
    topic, offsets = topics.create(partitions=2), topics.create(config=COMPACTED)
    assert run(kafka_broker, topic, offsets, "0", die_at) == "died"
    assert run(kafka_broker, topic, offsets, "0", "never") == then
    assert run(kafka_broker, topic, offsets, "1", "never") == "written"

    found = Counter(record.key for record in read_topic(kafka_broker.plain, topic))
    assert found == keys_of(0) + keys_of(1)


@pytest.mark.full
@pytest.mark.parametrize("die_after", [0.0, 0.003, 0.02])
def test_a_commit_that_nobody_heard_the_answer_of_is_found_out_by_the_next_driver(
    kafka_broker: Broker, topics: Topics, die_after: float
) -> None:
    topic, offsets = topics.create(partitions=2), topics.create(config=COMPACTED)
    died = run(kafka_broker, topic, offsets, "0", "committing", die_after=die_after)
    then = run(kafka_broker, topic, offsets, "0", "never")

    assert (died, then) in {("died", "written"), ("died", "repeated")}
    assert Counter(record.key for record in read_topic(kafka_broker.plain, topic)) == keys_of(0)


class Driver:
    """What the drivers of one transactional id do, in this process."""

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self.topic = topics.create(partitions=transaction_program.WRITERS)
        self._offsets = topics.create(config=COMPACTED)
        self._broker = broker
        self.config = KafkaSinkConfig(
            kind="kafka",
            bootstrap_servers=[broker.plain],
            topic=self.topic,
            delivery="exactly-once",
        )

    def session(self) -> BatchTransaction:
        return BatchTransaction(
            Connection(self.config),
            f"late-{self.topic}",
            key="spark/late",
            topic=self._offsets,
            max_bytes=1 << 20,
        )

    def found(self) -> Counter[bytes | None]:
        return Counter(record.key for record in read_topic(self._broker.plain, self.topic))


@pytest.mark.parametrize("has_written", [False, True])
def test_a_task_that_outlives_its_batch_is_shut_out_and_nobody_waits_for_it(
    kafka_broker: Broker, topics: Topics, has_written: bool
) -> None:
    driver = Driver(kafka_broker, topics)
    failed = driver.session()
    failed.claim(None)
    shared = failed.begin()
    in_time = transaction_program.joined(driver.config, shared)
    transaction_program.write(in_time, driver.topic, 0, 0)
    late = transaction_program.joined(driver.config, shared)
    if has_written:
        transaction_program.write(late, driver.topic, 0, 1)
    held = failed.close(is_clean=False)

    with pytest.raises(KafkaError):
        transaction_program.write(late, driver.topic, 0, 1)
    # Another producer's records behind those: committed readers stop where something is open.
    other = transaction_program.alone(driver.config)
    for writer in range(transaction_program.WRITERS):
        transaction_program.write(other, driver.topic, 7, writer)
    assert driver.found() == keys_of(7)

    again = driver.session()
    again.claim(held)
    reports = [
        transaction_program.report(driver.config, again.begin(), 0, writer)
        for writer in range(transaction_program.WRITERS)
    ]
    again.commit(DeliveredBatch(checkpoint="one", batch_id=0, end=""), reports, [])
    again.close(is_clean=True)
    assert driver.found() == keys_of(7) + keys_of(0)
    for each in (in_time, late, other):
        each.close()


def test_a_failed_batch_does_not_shut_out_whoever_took_over(
    kafka_broker: Broker, topics: Topics
) -> None:
    driver = Driver(kafka_broker, topics)
    older, newer = driver.session(), driver.session()
    older.claim(None)
    older.begin()
    newer.claim(None)
    shared = newer.begin()
    held = older.close(is_clean=False)

    reports = [transaction_program.report(driver.config, shared, 0, 0)]
    newer.commit(DeliveredBatch(checkpoint="one", batch_id=0, end=""), reports, [])
    newer.close(is_clean=True)
    with pytest.raises(SinkFencedError, match="Spark gave up"):
        driver.session().claim(held)
