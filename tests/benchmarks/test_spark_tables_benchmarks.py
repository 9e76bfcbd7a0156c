"""Two hundred tables in one `tailerd run` on Spark: alive how soon, how large, how quiet.

There is no peer: the figures are of the daemon and all its processes, seen through `/proc`.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, mebibytes
from tests.integration.daemon.running import daemon
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

pytestmark = [pytest.mark.benchmark, pytest.mark.slow, pytest.mark.spark]

TABLES = 200
IDLE_SECONDS = 30
LATENCIES = 10
GIBIBYTE = 2**30


class Lake:
    """Tables of two commits, and a configuration that delivers their snapshots and what follows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.builders = [
            TableBuilder(folder / "tables" / f"t{number:03}", start_ms=None)
            for number in range(TABLES)
        ]
        for table in self.builders:
            for commit in range(2):
                table.append([{"id": commit * 10 + n, "name": "x"} for n in range(5)])
        self.config = folder / "tailerd.yaml"
        sink = {"kind": "file", "path": f"{folder}/out/{{name}}"}
        template = {"from": "snapshot", "sink": sink}
        self.config.write_text(
            yaml.safe_dump(
                {
                    "state": str(folder / "state"),
                    "http": {"listen": "127.0.0.1:0"},
                    "spark": {"master": "local[2]"},
                    "discover": {"lake": {"path": f"{folder}/tables/*", "template": template}},
                }
            )
        )

    def with_rows(self) -> int:
        return sum(1 for _ in (self.folder / "out").glob("*/*-00000.jsonl"))

    def seconds_to_delivery(self, number: int) -> float:
        """Commit a row; return seconds until it is in a file."""
        out = self.folder / "out" / f"t{number:03}"
        before = len(list(out.glob("*.jsonl")))
        self.builders[number].append([{"id": 99, "name": "live"}])
        began = time.perf_counter()
        eventually(lambda: len(list(out.glob("*.jsonl"))) > before, seconds=60)
        return time.perf_counter() - began


def _family(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                yield from _family(int(child))


def _memory(pid: int) -> int:
    """Return the memory of a family; pages that forks share are counted once."""
    total = 0
    for each in _family(pid):
        # Some end while they are looked at.
        with suppress(OSError):
            found = re.search(r"Pss:\s+(\d+)", Path(f"/proc/{each}/smaps_rollup").read_text())
            total += int(found[1]) * 1024 if found else 0
    return total


def _cpu_seconds(pid: int) -> float:
    ticks = 0
    for each in _family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            # Its own, and of children that have ended and were waited for.
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_two_hundred_tables_in_one_daemon(tmp_path: Path, report: Report) -> None:
    require_java()
    lake = Lake(tmp_path)
    began = time.perf_counter()
    with daemon(lake.config) as process:
        eventually(lambda: lake.with_rows() == TABLES, seconds=600)
        alive = time.perf_counter() - began
        took = _cpu_seconds(process.pid)
        latencies = sorted(lake.seconds_to_delivery(n * 7) for n in range(LATENCIES))
        time.sleep(5)
        cpu = _cpu_seconds(process.pid)
        time.sleep(IDLE_SECONDS)
        share = (_cpu_seconds(process.pid) - cpu) / IDLE_SECONDS
        memory = _memory(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    latency = latencies[len(latencies) // 2]
    work = f"{TABLES} tables on Spark"
    report(
        [
            Row(f"{work}: all delivered", f"{alive:.1f} s", "", None, "<= 60 s", alive <= 60),
            Row(f"{work}: CPU until then", f"{took:.1f} s", "", None, "", True),
            Row(
                f"{work}: memory of all processes",
                mebibytes(memory),
                "",
                None,
                "<= 2048 MiB",
                memory <= 2 * GIBIBYTE,
            ),
            Row(f"{work}: idle, a core", f"{share:.1%}", "", None, "<= 5%", share <= 0.05),
            Row(f"{work}: commit to file, p50", f"{latency:.2f} s", "", None, "", True),
        ]
    )
