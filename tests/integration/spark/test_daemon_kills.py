"""A daemon of several tables on Spark, killed in its parts under load: each row is in one file.

In turn a Python worker of Spark, the daemon, Spark's Java. `--kills 30` kills thirty times; three
without it.
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
import yaml

from tests.integration.daemon.running import daemon, log_of
from tests.integration.spark.test_kafka_kills import kill_a_worker
from tests.process_tree import processes_below
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("workers_of_spark")]

TABLES = 4
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

    def end(self) -> None:
        """Write no more."""
        self._is_over.set()
        self._writer.join()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._writer.start()
        try:
            yield
        finally:
            self.end()


def _delivered(folder: Path, number: int) -> list[int]:
    files = sorted((folder / f"out-{number}").glob("*.jsonl"))
    return [json.loads(line)["id"] for file in files for line in file.open()]


def _total(folder: Path) -> int:
    return sum(len(_delivered(folder, number)) for number in range(TABLES))


def _until_more(folder: Path, rows: int, patience: float = 240.0) -> None:
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


@pytest.mark.full
def test_whatever_is_killed_each_row_is_in_one_file(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require_java()
    load = Load(tmp_path)
    config = tmp_path / "tailerd.yaml"
    tables = {
        f"t{n}": {
            "path": str(table.folder),
            "from": "0",
            "max_files_per_batch": 50,
            "sink": {"kind": "file", "path": str(tmp_path / f"out-{n}")},
        }
        for n, table in enumerate(load.tables)
    }
    settings = {"state": str(tmp_path / "state"), "http": {"listen": "127.0.0.1:0"}}
    spark = {"master": "local[2]"}
    config.write_text(yaml.safe_dump({**settings, "spark": spark, "tables": tables}))
    with ExitStack() as stack, load.running():
        running = stack.enter_context(daemon(config))
        for number in range(request.config.getoption("--kills") or DEFAULT_KILLS):
            _until_more(tmp_path, _total(tmp_path))
            time.sleep(random.uniform(0.0, 1.0))
            kind = ("worker", "daemon", "java")[number % 3]
            if kind == "worker":
                kill_a_worker(running, random.Random())
                continue
            victim = running.pid if kind == "daemon" else _java(running.pid)
            os.kill(victim, signal.SIGKILL)
            if kind == "daemon":
                running.wait(10)
                running = stack.enter_context(daemon(config))
        load.end()
        _until_more(tmp_path, sum(load.counts) - 1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, log_of(config)
    for number, count in enumerate(load.counts):
        assert _delivered(tmp_path, number) == list(range(count)), number
