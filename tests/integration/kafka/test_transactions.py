"""Transactions that run out of time, and two daemons with one identity."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.kafka.following import Follower, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def stall(process: subprocess.Popen[str], seconds: float) -> None:
    """Stop a process for a while, as a machine that swaps or a virtual one that moves does."""
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGCONT)


@pytest.mark.full
def test_transactions_that_expire_while_the_daemon_is_stalled(
    kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    follower = Follower(
        tmp_path / "d",
        table,
        topic,
        bootstrap=kafka_broker.plain,
        # Small steps: each has to be committed within its time.
        options={"max_files_per_batch": 20},
        producer={"transaction_timeout_ms": 3000},
    )
    with follower.running() as process:
        with Writer(table):
            eventually(lambda: len(follower.delivered()) > 300)
            for _ in range(3):
                stall(process, 4)
                time.sleep(1)
        follower.catches_up()
    follower.obeys_the_law()


@pytest.mark.full
def test_a_second_daemon_fences_the_first_which_says_so(
    kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    topic = topic_for(topics, partitions=3)
    older = Follower(tmp_path / "older", table, topic, bootstrap=kafka_broker.plain)
    newer = Follower(tmp_path / "newer", table, topic, bootstrap=kafka_broker.plain)
    with older.running() as first, Writer(table):
        eventually(lambda: len(older.delivered()) > 300)
        with newer.running():
            assert first.wait(60) == 1
            reported = (older.folder / "daemon.log").read_text()
            assert "sink_fenced" in reported
            assert "another process" in reported
            seen = len(newer.delivered())
            eventually(lambda: len(newer.delivered()) > seen + 300)
    with newer.running():
        newer.catches_up()
    newer.obeys_the_law()
