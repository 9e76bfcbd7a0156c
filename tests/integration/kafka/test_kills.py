"""`kill -9` of the real daemon, again and again, while the table keeps changing.

`--kills 100` kills a hundred times; six without it.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.kafka.following import (
    GUARANTEES,
    Follower,
    Followers,
    Guarantee,
    Table,
    Writer,
    topic_for,
)
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
DEFAULT_KILLS = 6
LARGE_ROWS = 20_000
LARGE_KILLS = 3


@pytest.mark.full
def test_kill_9_under_load_loses_nothing_and_doubles_nothing_where_that_is_promised(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    requested = pytestconfig.getoption("--kills")
    kills = DEFAULT_KILLS if requested is None else requested
    chance = random.Random(5)
    table = Table(tmp_path / "t")
    followers = Followers(
        tmp_path, table, topics, topic={"partitions": 3}, bootstrap=kafka_broker.plain
    )
    in_the_middle = Counter[Guarantee]()
    for _ in range(kills):
        with Writer(table, pause_seconds=0.02), followers.running() as processes:
            # Some die before they deliver anything, some while they catch up, some while they
            # follow.
            time.sleep(0.6 + chance.random() * 1.5)
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.wait()
            for each in followers.each:
                in_the_middle[each.guarantee] += each.last_delivered() < table.version
    assert min(in_the_middle[each] for each in GUARANTEES) > kills / 2
    with followers.running():
        followers.catch_up()
    followers.obey_the_law()


@pytest.mark.full
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_kill_9_inside_a_large_rewritten_commit_repeats_it_whole(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, guarantee: Guarantee
) -> None:
    """Kills take their time: only so does one hit the middle of a commit."""
    chance = random.Random(7)
    table = Table(tmp_path / "t", row_bytes=50)
    table.insert(LARGE_ROWS)
    follower = Follower(
        tmp_path / "d",
        table,
        topic_for(topics, partitions=3),
        bootstrap=kafka_broker.plain,
        guarantee=guarantee,
    )
    for _ in range(LARGE_KILLS):
        table.rewrite(LARGE_ROWS // 2)
        with follower.running() as process:
            eventually(lambda: has_begun(follower))
            time.sleep(chance.random() * 0.5)
            process.send_signal(signal.SIGKILL)
            process.wait()
    with follower.running():
        follower.catches_up()
    follower.obeys_the_law()


def has_begun(follower: Follower) -> bool:
    """Tell whether the daemon is about to deliver."""
    log = follower.folder / "daemon.log"
    return log.exists() and "pipeline" in log.read_text().lower()
