"""The broker goes away, hangs, runs out of disk, and comes back; the law holds afterwards.

Each of it meets two daemons, exactly-once and at-least-once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.following import Followers, Table, Writer
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
# What is wrong is told after seconds, not after a minute.
IMPATIENT = {
    "bootstrap_timeout_ms": 1000,
    "max_block_ms": 2000,
    "delivery_timeout_ms": 2000,
    "request_timeout_ms": 1000,
}
# Beyond what the broker's other files need, and less than the test writes.
_FULL_BYTES = 8 << 20


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # Small index files: they are written at full size, and a limit on files must not meet them.
    properties = {"log.index.size.max.bytes": str(64 << 10)}
    broker = Broker(tmp_path_factory.mktemp("kafka") / "broker", properties=properties)
    yield broker
    broker.kill()


@pytest.fixture
def own_topics(broker: Broker) -> Iterator[Topics]:
    broker.start()
    with Topics(broker.plain) as topics:
        yield topics
        broker.start()


@pytest.mark.full
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_broker_that_ends_in_the_middle_and_comes_back(
    broker: Broker, own_topics: Topics, tmp_path: Path, way: str
) -> None:
    table = Table(tmp_path / "t")
    followers = Followers(
        tmp_path, table, own_topics, topic={"partitions": 3}, bootstrap=broker.plain
    )
    with followers.running():
        with Writer(table):
            followers.deliver(300)
            getattr(broker, way)()
            time.sleep(2)
            broker.start()
            time.sleep(1)
        followers.catch_up()
    followers.obey_the_law()


@pytest.mark.full
def test_a_broker_that_hangs_for_a_while(
    broker: Broker, own_topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    followers = Followers(
        tmp_path,
        table,
        own_topics,
        topic={"partitions": 3},
        bootstrap=broker.plain,
        producer={"request_timeout_ms": 2000},
    )
    with followers.running():
        with Writer(table):
            followers.deliver(300)
            broker.pause()
            time.sleep(5)
            broker.resume()
            time.sleep(1)
        followers.catch_up()
    followers.obey_the_law()


@pytest.mark.full
def test_a_broker_that_is_not_there_at_the_start(
    broker: Broker, own_topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    producer = {"bootstrap_timeout_ms": 1000}
    followers = Followers(tmp_path, table, own_topics, bootstrap=broker.plain, producer=producer)
    broker.stop()
    table.insert(50)
    with followers.running():
        for each in followers.each:
            assert "reached" in each.waits_for_error("", state="retrying")
        broker.start()
        followers.catch_up()
    followers.obey_the_law()


@pytest.mark.full
def test_a_broker_whose_disk_is_full_until_somebody_makes_room(
    broker: Broker, own_topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t", row_bytes=2000)
    followers = Followers(tmp_path, table, own_topics, bootstrap=broker.plain, producer=IMPATIENT)
    with followers.running():
        table.insert(50)
        followers.catch_up()
        broker.limit_files(_FULL_BYTES)
        for _ in range(40):
            table.insert(200)
        # Kafka gives up a folder that it cannot write, and ends when that was its last one.
        eventually(lambda: not broker.is_running)
        for each in followers.each:
            each.waits_for_error("", state="retrying")
        # It ended with the first file that was full.
        written = [
            sum(f.stat().st_size for f in broker.data.glob(f"{each.topic}-0/*.log"))
            for each in followers.each
        ]
        assert max(written) == _FULL_BYTES
        broker.start()
        followers.catch_up()
    followers.obey_the_law()
