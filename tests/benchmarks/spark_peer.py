"""One session that has `format("tailerd")` and Delta Spark, for programs that time both."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.maintenance.delta_spark_program import PACKAGE

CONF = {
    "spark.jars.packages": PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.memory": "4g",
    # The tables' commits are years old; only this check of the peer minds.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}


def start_session() -> SparkSession:
    """Start Spark with local[2] and 4 GB, with everything else as both have it by default."""
    from tailerd.spark.session import local_session

    spark = local_session("benchmark", "local[2]", CONF)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def in_turns(ours: Callable[[], Any], peer: Callable[[], Any], times: int = 3) -> dict[str, float]:
    """Run both once to warm them, then `times` times in turns; return medians of wall and CPU.

    Returns:
        `ours`, `peer`: seconds; `ours_cpu`, `peer_cpu`: seconds of CPU in Java and in its Python
        processes.
    """
    ours(), peer()
    names = ("ours", "ours_cpu", "peer", "peer_cpu")
    runs = [(*_timed(ours), *_timed(peer)) for _ in range(times)]
    return {name: statistics.median(run[i] for run in runs) for i, name in enumerate(names)}


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    start, start_cpu = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - start, cpu_seconds() - start_cpu


class HeapWatch:
    """Collects in Java over and over while it is open, to see how much is live at most.

    Attributes:
        growth_bytes: The most that was live, above what was live before.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._before = self._live_bytes()
        self.growth_bytes = 0

    def __enter__(self) -> HeapWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_closed.is_set():
            start = time.perf_counter()
            self.growth_bytes = max(self.growth_bytes, self._live_bytes() - self._before)
            # A third of the time at most, so that the work gets on.
            self._is_closed.wait(max(0.3, 2 * (time.perf_counter() - start)))

    def _live_bytes(self) -> int:
        self._jvm.java.lang.System.gc()
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())


def source_peak_bytes() -> tuple[int, int]:
    """Return the peak of the largest process that serves a streaming source of ours.

    Returns:
        Its own memory, all that Python holds; and with the code of its libraries, which are files
        mapped into it. `HeapWatch` counts no code of the peer's either.
    """
    return max(_peak(pid) for pid in _family(os.getpid()) if _is_source(pid))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and all below it, those that have ended included."""
    ticks = sum(sum(map(int, _stat(pid)[11:15])) for pid in _family(os.getpid()))
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if stat := _stat(int(folder.name)):
            parents.setdefault(int(stat[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _is_source(pid: int) -> bool:
    return b"python_streaming_source_runner" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _peak(pid: int) -> tuple[int, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    whole, code = (
        int(status.partition(f"{name}:")[2].split()[0]) * 1024 for name in ("VmHWM", "RssFile")
    )
    return whole - code, whole
