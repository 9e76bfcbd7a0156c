"""Connections are cut in the middle of requests and before answers; the law holds afterwards.

Each of it meets daemons of both guarantees.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.integration.kafka.following import GUARANTEES, Followers, Table, Writer
from tests.kafka.broker import Broker
from tests.kafka.proxy import Proxy
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
QUICK = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 100, "retry_backoff_ms": 20}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "t")


@pytest.fixture
def followers(kafka_broker: Broker, topics: Topics, tmp_path: Path, table: Table) -> Followers:
    """Daemons that know the broker by its proxy alone."""
    return Followers(
        tmp_path,
        table,
        topics,
        topic={"partitions": 3},
        bootstrap=kafka_broker.proxied,
        reads_from=kafka_broker.plain,
        producer=QUICK,
    )


@pytest.mark.full
def test_connections_cut_in_the_middle_of_a_produce(
    kafka_broker: Broker, table: Table, followers: Followers
) -> None:
    ports = kafka_broker.ports
    with Proxy(ports.proxy, ports.proxied) as proxy, followers.running():
        with Writer(table, rows=400):
            proxy.cut_every(100_000, 400_000)
            end = time.monotonic() + 8
            while time.monotonic() < end or proxy.cuts < 10 * len(GUARANTEES):
                time.sleep(0.1)
                assert time.monotonic() < end + 60, f"{proxy.cuts} cuts"
            proxy.heal()
        followers.catch_up()
    followers.obey_the_law()


@pytest.mark.full
def test_answers_lost_after_the_broker_has_done_what_was_asked(
    kafka_broker: Broker, table: Table, followers: Followers
) -> None:
    ports = kafka_broker.ports
    chance = random.Random(3)
    least = 5 * len(GUARANTEES)
    with Proxy(ports.proxy, ports.proxied) as proxy, followers.running():
        with Writer(table, rows=200):
            # On a busy machine fewer answers come in that time.
            for number in range(60):
                if number >= 15 and proxy.cuts >= least:
                    break
                proxy.lose_answer_after(chance.randint(1, 60_000))
                time.sleep(0.4)
            proxy.heal()
        followers.catch_up()
        assert proxy.cuts >= least
    followers.obey_the_law()


@pytest.mark.full
def test_a_network_that_is_gone_for_a_while(
    kafka_broker: Broker, table: Table, followers: Followers
) -> None:
    ports = kafka_broker.ports
    with followers.running():
        with Writer(table):
            for _ in range(3):
                with Proxy(ports.proxy, ports.proxied):
                    time.sleep(2)
                time.sleep(1)
        with Proxy(ports.proxy, ports.proxied):
            followers.catch_up()
    followers.obey_the_law()
