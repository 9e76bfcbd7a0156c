"""`kill -9` of the daemon and of Spark's Python workers while tables go into Kafka exactly once.

`--kills 30` kills thirty times; two without it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.daemon.running import eventually
from tests.integration.kafka.following import Follower, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.process_tree import processes_below
from tests.spark_session import require_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("workers_of_spark")]
DEFAULT_KILLS = 2
_SECONDS = 240.0


def python_workers(daemon: int) -> list[int]:
    """Return the Python processes of a daemon's Spark that have no children of their own."""
    found = processes_below(daemon)
    parents = {process.parent for process in found}
    return [each.pid for each in found if each.pid not in parents and "pyspark" in each.command]


def kill_a_worker(daemon: subprocess.Popen[str], chance: random.Random) -> None:
    workers: list[int] = []

    def is_found() -> bool:
        workers[:] = python_workers(daemon.pid)
        return bool(workers)

    eventually(is_found)
    os.kill(chance.choice(sorted(workers)), signal.SIGKILL)


def delivers_more_than(follower: Follower, version: int) -> None:
    eventually(lambda: follower.last_delivered() > version, _SECONDS)


@pytest.mark.full
def test_kill_9_under_load_loses_nothing_and_doubles_nothing(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    require_java()
    asked = pytestconfig.getoption("--kills")
    left = DEFAULT_KILLS if asked is None else asked
    chance = random.Random()
    table = Table(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    follower = Follower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=kafka_broker.plain,
        # Several batches while it lives, and no long way to the head at the end.
        options={"engine": "spark", "max_files_per_batch": 200},
    )
    while True:
        with Writer(table, rows=100, pause_seconds=0.5), follower.running() as process:
            eventually(lambda: follower.last_delivered() >= 0, _SECONDS)
            while left > 0:
                left -= 1
                time.sleep(chance.random())
                if left % 3 == 1:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    break
                kill_a_worker(process, chance)
                delivers_more_than(follower, follower.last_delivered())
            else:
                break
    with follower.running():
        follower.catches_up(_SECONDS)
    follower.obeys_the_law()
