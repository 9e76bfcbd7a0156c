"""Three brokers: leaders move, replicas are missing; the law holds afterwards.

Each of it meets two daemons, exactly-once and at-least-once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.following import Followers, Table, Writer
from tests.kafka.cluster import Cluster
from tests.kafka.topics import Topics
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
# The same for each topic, so that one broker leads them all.
REPLICAS = (1, 2, 3)


@pytest.fixture
def cluster_topics(kafka_cluster: Cluster) -> Iterator[Topics]:
    kafka_cluster.start()
    with Topics(kafka_cluster.plain) as topics:
        yield topics
        kafka_cluster.start()


@pytest.mark.full
def test_leaders_that_are_killed_one_after_the_other(
    kafka_cluster: Cluster, cluster_topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    followers = Followers(
        tmp_path,
        table,
        cluster_topics,
        topic={"replicas": REPLICAS, "config": {"min.insync.replicas": "2"}},
        bootstrap=kafka_cluster.plain,
    )
    with followers.running():
        with Writer(table):
            followers.deliver(300)
            for _ in range(2):
                leader = leader_of(cluster_topics, followers)
                kafka_cluster.brokers[leader].kill()
                # Well before anything runs into the client's time limits of half a minute and one.
                followers.deliver(300, 25)
                assert leader_of(cluster_topics, followers) != leader
                kafka_cluster.brokers[leader].start()
                eventually(lambda: in_sync(cluster_topics, followers) == {3})
        followers.catch_up()
    followers.obey_the_law()


@pytest.mark.full
def test_too_few_replicas_until_a_broker_is_back(
    kafka_cluster: Cluster, cluster_topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    followers = Followers(
        tmp_path,
        table,
        cluster_topics,
        topic={"replicas": REPLICAS, "config": {"min.insync.replicas": "3"}},
        bootstrap=kafka_cluster.plain,
        producer={"delivery_timeout_ms": 4000, "request_timeout_ms": 3000},
    )
    with followers.running():
        table.insert()
        followers.catch_up()
        before = set(table.changes)
        # The brokers decide on a transaction first and show its rows a moment later.
        eventually(lambda: all(each.delivered() == before for each in followers.each))
        other = next(n for n in REPLICAS if n != leader_of(cluster_topics, followers))
        kafka_cluster.brokers[other].kill()
        eventually(lambda: in_sync(cluster_topics, followers) == {2})
        table.insert()
        for each in followers.each:
            error = each.waits_for_error("not enough replicas", state="retrying")
            assert f"Partition 0 of {each.topic}" in error
        time.sleep(1)
        assert all(each.delivered() == before for each in followers.each)
        kafka_cluster.brokers[other].start()
        followers.catch_up()
    followers.obey_the_law()


def leader_of(topics: Topics, followers: Followers) -> int:
    """Return the node id of the broker that leads the topics of both."""
    [found] = {topics.leaders(each.topic)[0] for each in followers.each}
    return found


def in_sync(topics: Topics, followers: Followers) -> set[int]:
    """Return how many replicas of each topic are in sync."""
    return {len(topics.in_sync(each.topic)[0]) for each in followers.each}
