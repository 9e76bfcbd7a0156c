"""Three brokers: leaders move, replicas are missing; the law holds afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon.running import eventually
from tests.integration.kafka.following import Follower, Guarantee, Table, Writer, topic_for
from tests.kafka.cluster import Cluster
from tests.kafka.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
BOTH = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])


@pytest.fixture
def cluster_topics(kafka_cluster: Cluster) -> Iterator[Topics]:
    kafka_cluster.start()
    with Topics(kafka_cluster.plain) as topics:
        yield topics
        kafka_cluster.start()


@pytest.mark.full
@BOTH
def test_leaders_that_are_killed_one_after_the_other(
    kafka_cluster: Cluster, cluster_topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(cluster_topics, replication=3, config={"min.insync.replicas": "2"})
    follower = Follower(
        tmp_path / "d", table, topic, bootstrap=kafka_cluster.plain, guarantee=guarantee
    )
    with follower.running():
        with Writer(table):
            eventually(lambda: len(follower.delivered()) > 300)
            for _ in range(2):
                leader = cluster_topics.leaders(topic)[0]
                seen = len(follower.delivered())
                kafka_cluster.brokers[leader].kill()
                # Well before anything runs into the client's time limits of half a minute and one.
                eventually(lambda n=seen: len(follower.delivered()) > n + 300, 25)  # type: ignore[misc]
                assert cluster_topics.leaders(topic)[0] != leader
                kafka_cluster.brokers[leader].start()
                eventually(lambda: len(cluster_topics.in_sync(topic)[0]) == 3, 60)
        follower.catches_up()
    follower.obeys_the_law()


@pytest.mark.full
@BOTH
def test_too_few_replicas_until_a_broker_is_back(
    kafka_cluster: Cluster, cluster_topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(cluster_topics, replication=3, config={"min.insync.replicas": "3"})
    follower = Follower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=kafka_cluster.plain,
        guarantee=guarantee,
        producer={"delivery_timeout_ms": 4000, "request_timeout_ms": 3000},
    )
    with follower.running():
        table.insert()
        follower.catches_up()
        before = set(table.changes)
        # The brokers decide on a transaction first and show its rows a moment later.
        eventually(lambda: follower.delivered() == before)
        [other] = [n for n in (1, 2) if n != cluster_topics.leaders(topic)[0]][:1]
        kafka_cluster.brokers[other].kill()
        eventually(lambda: len(cluster_topics.in_sync(topic)[0]) == 2)
        table.insert()
        error = follower.waits_for_error("not enough replicas", state="retrying")
        assert f"Partition 0 of {topic}" in error
        time.sleep(1)
        assert follower.delivered() == before
        kafka_cluster.brokers[other].start()
        follower.catches_up()
    follower.obeys_the_law()
