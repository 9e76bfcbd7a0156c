"""`kill -9` on a cluster in the middle of deliveries, while a writer commits.

Three kills in every run (a Python worker, an executor, the daemon), `--kills 30` on demand, which
adds the daemon's Java. Each change is in exactly one file afterwards.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.faults.test_kills import BusyTable
from tests.integration.spark.cluster import Cluster
from tests.integration.spark.test_supervisor import Supervised
from tests.process_tree import pids_below
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KINDS = ("worker", "executor", "driver", "java")
DEFAULT_KILLS = 3
PACE_SECONDS = 0.1
MAX_BEHIND = 60
"""Commits the writer is ahead at most: some deliveries, however long a restart takes."""
MEAN_LIFE_SECONDS = 1.0


class Killed:
    """A daemon on a cluster, of which something dies now and then."""

    def __init__(self, cluster: Cluster, folder: Path, table: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.out = folder / "out"
        sink = {"kind": "file", "path": str(self.out)}
        self._tables: dict[str, Any] = {
            "orders": {"path": str(table), "from": "0", "max_files_per_batch": 30, "sink": sink}
        }
        self._reached = 0
        self.run = self._start()

    @property
    def version(self) -> int:
        """The version that comes next, as far as was told."""
        saved = [event["version"] for event in self.run.of("OffsetSaved", "orders")]
        self._reached = max([self._reached, *saved[-1:]])
        return self._reached

    def _start(self) -> Supervised:
        spark = {"master": self._cluster.master, "conf": self._cluster.conf()}
        return Supervised(self._folder, self._tables, spark=spark)

    def pids(self, kind: str) -> list[int]:
        """The processes a kind of death may choose from."""
        driver = self.run.process.pid
        match kind:
            case "worker":
                executors = self._cluster.executors()
                return [pid for executor in executors for pid in pids_below(executor, "python")]
            case "executor":
                return self._cluster.executors()
            case "java":
                return pids_below(driver, "java")
            case _:
                return [driver]

    def die(self, kind: str, chances: random.Random) -> None:
        """Kill one process of a kind, and start the driver again if it was that."""
        pid = chances.choice(eventually(lambda: self.pids(kind)))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if kind == "driver":
            self.run.process.wait(20)
            self.run = self._start()

    def rows(self) -> list[tuple[int, int, str]]:
        """Version, id and change of every row in the folder."""
        found = [json.loads(line) for f in self.out.glob("*.jsonl") for line in f.open()]
        return [(row["_commit_version"], row["id"], row["_change_type"]) for row in found]

    def files(self) -> int:
        """How many files readers see."""
        return len(list(self.out.glob("*.jsonl")))

    def has_more_files(self, than: int) -> bool:
        """Whether there are more of them."""
        return self.files() > than


@contextmanager
def written_to(table: BusyTable, source: random.Random, killed: Killed) -> Iterator[None]:
    """Commit all the time, a file or several, while the daemon is not too far behind."""
    ends = threading.Event()

    def write() -> None:
        while not ends.wait(source.expovariate(1 / PACE_SECONDS)):
            if table.builder.version - killed.version < MAX_BEHIND:
                table.commit(source.choice([1, 1, 2, 9]))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ends.set()
        writer.join()


@pytest.mark.full
def test_whatever_is_killed_under_load_every_change_is_there_once(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kills = request.config.getoption("--kills") or DEFAULT_KILLS
    table = BusyTable(TableBuilder(tmp_path / "table", start_ms=None))
    table.builder.create()
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chances = random.Random(seed)
    killed = Killed(cluster, tmp_path, table.builder.folder)
    try:
        with written_to(table, random.Random(f"{seed}/writer"), killed):
            for number in range(kills):
                # Something was delivered since the last death; the next delivery runs by now.
                eventually(partial(killed.has_more_files, killed.files()))
                time.sleep(chances.expovariate(1 / MEAN_LIFE_SECONDS))
                print(f"{number + 1}: {KINDS[number % len(KINDS)]}, before {killed.version}")
                killed.die(KINDS[number % len(KINDS)], chances)
        head = table.builder.version + 1
        killed.run.until(lambda: killed.version == head)
        killed.run.process.send_signal(signal.SIGTERM)
        assert killed.run.ended() == 0, killed.run.reported()
    finally:
        killed.run.process.kill()
    expected = sorted((version, row, "insert") for row, version in table.version_of.items())
    assert sorted(killed.rows()) == expected
    assert not list(killed.out.glob(".*.tmp"))
