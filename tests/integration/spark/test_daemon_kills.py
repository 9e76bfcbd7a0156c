"""A daemon of several tables on Spark, killed in its parts under load.

In turn a Python worker of Spark, the daemon, Spark's Java. `--kills 30` kills thirty times; three
without it. Each row is in one file, and of the table that goes into Kafka each change comes once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.integration.daemon.running import file_table, read_log
from tests.integration.kafka.following import Follower, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.process_tree import processes_below
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = 3
DEFAULT_KILLS = 3
JAVA = "org.apache.spark.deploy.SparkSubmit"


class Load:
    """Tables that are written to, a row a commit, while the block runs."""

    def __init__(self, folder: Path) -> None:
        self.tables = [TableBuilder(folder / f"table-{n}", start_ms=None) for n in range(TABLES)]
        self.counts = [0] * TABLES
        self._is_over = threading.Event()
        self._writer = threading.Thread(target=self._write)
        for number in range(TABLES):
            self._append(number)

    def _append(self, number: int) -> None:
        self.tables[number].append([{"id": self.counts[number]}])
        self.counts[number] += 1

    def _write(self) -> None:
        while not self._is_over.wait(0.1):
            self._append(random.randrange(TABLES))

    @contextmanager
    def running(self) -> Iterator[None]:
        self._writer.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._writer.join()


def _delivered(folder: Path, number: int) -> list[int]:
    files = sorted((folder / f"out-{number}").glob("*.jsonl"))
    return [json.loads(line)["id"] for file in files for line in file.open()]


def _total(folder: Path) -> int:
    return sum(len(_delivered(folder, number)) for number in range(TABLES))


def _until_more(folder: Path, rows: int, patience: float = PATIENCE_SECONDS) -> None:
    """Wait until there are more rows, as long as now and then there is a new one."""
    known, deadline = -1, 0.0
    while (found := _total(folder)) <= rows:
        if found > known:
            known, deadline = found, time.monotonic() + patience
        assert time.monotonic() < deadline, f"{found} rows, then none"
        time.sleep(0.3)


def _java(pid: int) -> int:
    """Return a daemon's Java."""
    found = [each for each in processes_below(pid) if JAVA in each.command and each.name != "bash"]
    return found[0].pid


def _workers(pid: int) -> list[int]:
    """Return the Python processes of a daemon's Spark that have no children of their own."""
    found = processes_below(pid)
    parents = {process.parent for process in found}
    return [each.pid for each in found if each.pid not in parents and "pyspark" in each.command]


def _kill_a_worker(pid: int) -> None:
    workers: list[int] = []

    def is_found() -> bool:
        workers[:] = _workers(pid)
        return bool(workers)

    eventually(is_found)
    os.kill(random.choice(workers), signal.SIGKILL)


@pytest.mark.full
def test_whatever_is_killed_each_row_is_in_one_file_and_each_change_once_in_the_topic(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    require_java()
    load, table = Load(tmp_path), Table(tmp_path / "followed")
    options = {"engine": "spark", "from": "0", "max_files_per_batch": 50}
    follower = Follower(
        tmp_path / "daemon",
        table,
        topic_for(topics, partitions=3),
        bootstrap=kafka_broker.plain,
        options=options,
        beside={
            f"t{n}": file_table(each.folder, tmp_path / f"out-{n}", **options)
            for n, each in enumerate(load.tables)
        },
    )
    requested = pytestconfig.getoption("--kills")
    with ExitStack() as stack:
        running = stack.enter_context(follower.running())
        with load.running(), Writer(table, pause_seconds=0.5):
            for number in range(DEFAULT_KILLS if requested is None else requested):
                known = follower.last_delivered()
                _until_more(tmp_path, _total(tmp_path))
                eventually(lambda v=known: follower.last_delivered() > v)  # type: ignore[misc]
                time.sleep(random.uniform(0.0, 1.0))
                match ("worker", "daemon", "java")[number % 3]:
                    case "worker":
                        _kill_a_worker(running.pid)
                    case "java":
                        os.kill(_java(running.pid), signal.SIGKILL)
                    case _:
                        running.kill()
                        running.wait(10)
                        running = stack.enter_context(follower.running())
        _until_more(tmp_path, sum(load.counts) - 1)
        follower.catches_up()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, read_log(follower.config)
    for number, count in enumerate(load.counts):
        assert _delivered(tmp_path, number) == list(range(count)), number
    follower.obeys_the_law()
