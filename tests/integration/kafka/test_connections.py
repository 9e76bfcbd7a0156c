"""Connections are cut in the middle of requests and before answers; the law holds afterwards."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.integration.kafka.following import Follower, Guarantee, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.proxy import Proxy
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
BOTH = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
QUICK = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 100, "retry_backoff_ms": 20}


def follower_of(
    folder: Path, table: Table, topic: str, broker: Broker, guarantee: Guarantee
) -> Follower:
    return Follower(
        folder,
        table,
        topic,
        bootstrap=broker.proxied,
        reads_from=broker.plain,
        guarantee=guarantee,
        producer=QUICK,
    )


@pytest.mark.full
@BOTH
def test_connections_cut_in_the_middle_of_a_produce(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    follower = follower_of(tmp_path / "d", table, topic, kafka_broker, guarantee)
    ports = kafka_broker.ports
    with Proxy(ports.proxy, ports.proxied) as proxy, follower.running():
        with Writer(table, rows=400):
            proxy.cut_every(100_000, 400_000)
            end = time.monotonic() + 8
            while time.monotonic() < end or proxy.cuts < 10:
                time.sleep(0.1)
                assert time.monotonic() < end + 60, f"{proxy.cuts} cuts"
            proxy.heal()
        follower.catches_up()
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_answers_lost_after_the_broker_has_done_what_was_asked(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    follower = follower_of(tmp_path / "d", table, topic, kafka_broker, guarantee)
    ports = kafka_broker.ports
    chance = random.Random(3)
    with Proxy(ports.proxy, ports.proxied) as proxy, follower.running():
        with Writer(table, rows=200):
            # On a busy machine fewer answers come in that time.
            for number in range(60):
                if number >= 15 and proxy.cuts >= 5:
                    break
                proxy.lose_answer_after(chance.randint(1, 60_000))
                time.sleep(0.4)
            proxy.heal()
        follower.catches_up()
        assert proxy.cuts >= 5
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_a_network_that_is_gone_for_a_while(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    follower = follower_of(tmp_path / "d", table, topic, kafka_broker, guarantee)
    ports = kafka_broker.ports
    with follower.running():
        with Writer(table):
            for _ in range(3):
                with Proxy(ports.proxy, ports.proxied):
                    time.sleep(2)
                time.sleep(1)
        with Proxy(ports.proxy, ports.proxied):
            follower.catches_up()
    follower.obeys_the_law()
