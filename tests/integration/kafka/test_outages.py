"""The broker goes away, hangs, runs out of disk, and comes back; the law holds afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon.running import eventually
from tests.integration.kafka.following import Follower, Guarantee, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
# What is wrong is told after seconds, not after a minute.
IMPATIENT = {"max_block_ms": 3000, "delivery_timeout_ms": 5000, "request_timeout_ms": 2000}
# Beyond what the broker's other files need, and less than the test writes.
_FULL_BYTES = 8 << 20
BOTH = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])


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
@BOTH
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_broker_that_ends_in_the_middle_and_comes_back(
    broker: Broker, own_topics: Topics, tmp_path: Path, guarantee: Guarantee, way: str
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(own_topics, partitions=3)
    follower = Follower(tmp_path / "d", table, topic, bootstrap=broker.plain, guarantee=guarantee)
    with follower.running():
        with Writer(table):
            eventually(lambda: len(follower.delivered()) > 300)
            getattr(broker, way)()
            time.sleep(2)
            broker.start()
            time.sleep(1)
        follower.catches_up()
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_a_broker_that_hangs_for_a_while(
    broker: Broker, own_topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(own_topics, partitions=3)
    follower = Follower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=broker.plain,
        guarantee=guarantee,
        producer={"request_timeout_ms": 2000},
    )
    with follower.running():
        with Writer(table):
            eventually(lambda: len(follower.delivered()) > 300)
            broker.pause()
            time.sleep(5)
            broker.resume()
            time.sleep(1)
        follower.catches_up()
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_a_broker_that_is_not_there_at_the_start(
    broker: Broker, own_topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(own_topics)
    broker.stop()
    table.insert(50)
    follower = Follower(tmp_path / "d", table, topic, bootstrap=broker.plain, guarantee=guarantee)
    with follower.running():
        error = follower.waits_for_error("", state="retrying")
        assert "reached" in error
        broker.start()
        follower.catches_up()
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_a_broker_whose_disk_is_full_until_somebody_makes_room(
    broker: Broker, own_topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t", row_bytes=2000)
    topic = topic_for(own_topics)
    follower = Follower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=broker.plain,
        guarantee=guarantee,
        producer=IMPATIENT,
    )
    with follower.running():
        table.insert(50)
        follower.catches_up()
        broker.limit_files(_FULL_BYTES)
        for _ in range(40):
            table.insert(200)
        # Kafka gives up a folder that it cannot write, and ends when that was its last one.
        eventually(lambda: not broker.is_running, 60)
        follower.waits_for_error("", state="retrying")
        assert sum(f.stat().st_size for f in broker.data.glob(f"{topic}-0/*.log")) == _FULL_BYTES
        broker.start()
        follower.catches_up()
    follower.obeys_the_law()
