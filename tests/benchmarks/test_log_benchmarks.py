"""Opening and advancing large tables, against deltalake."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import deltalake
import pytest

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.stats.table_growth import SnapshotCache
from tests.benchmarks.big_tables import (
    FILES_PER_COMMIT,
    add_of,
    big_checkpoint,
    clone,
    many_commits,
    wide_table,
)
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import (
    Measured,
    Row,
    mebibytes,
    milliseconds,
    paired,
    run_process,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

MILLION = 1_000_000

OURS = """
    import asyncio, sys, time
    from tailerd.formats.delta.log.log_reader import LogReader
    start = time.perf_counter()
    snapshot = asyncio.run(LogReader.at(sys.argv[1]).open())
    result = {"seconds": time.perf_counter() - start, "version": snapshot.version}
"""
PEER = """
    import sys, time
    import deltalake
    start = time.perf_counter()
    table = deltalake.DeltaTable(sys.argv[1])
    result = {"seconds": time.perf_counter() - start, "version": table.version()}
"""


def open_both(table: Path) -> tuple[Measured, Measured]:
    ours, peer = paired(lambda: run_process(OURS, table), lambda: run_process(PEER, table))
    return ours, peer


def open_rows(work: str, table: Path, goal: float) -> list[Row]:
    """Compare the call that opens a table, each in a fresh process, and the process's memory."""
    ours, peer = open_both(table)
    assert ours.result["version"] == peer.result["version"]
    our_seconds, peer_seconds = ours.result["seconds"], peer.result["seconds"]
    seconds, memory = our_seconds / peer_seconds, ours.peak_bytes / peer.peak_bytes
    return [
        Row(
            f"{work}: time",
            milliseconds(our_seconds),
            milliseconds(peer_seconds),
            seconds,
            f"<= {goal}x",
            seconds <= goal,
        ),
        Row(
            f"{work}: peak memory",
            mebibytes(ours.peak_bytes),
            mebibytes(peer.peak_bytes),
            memory,
            "<= 0.25x",
            memory <= 0.25,
        ),
    ]


def test_cold_open_of_a_million_files(report: Report) -> None:
    report(open_rows("cold open, 1M files + 100 commits", big_checkpoint(MILLION), 0.25))


def test_cold_open_of_ten_thousand_commits(report: Report) -> None:
    report(open_rows("cold open, 10,000 commits", many_commits(10_000), 0.08)[:1])


async def time_advances(
    table: Path, first_file: int, commits: int, advance: Callable[[], Awaitable[object]]
) -> list[float]:
    """Append commits of ten files and return how long each `advance` took."""
    builder = wide_table(table)
    builder.version = max(int(path.stem) for path in builder.log.glob("*.json"))
    seconds = []
    for number in range(commits):
        first = first_file + number * FILES_PER_COMMIT
        builder.commit(*(add_of(first + i) for i in range(FILES_PER_COMMIT)))
        start = time.perf_counter()
        assert await advance() is not None
        seconds.append(time.perf_counter() - start)
    return seconds


async def our_advances(original: Path, files: int, tmp_path: Path, commits: int) -> list[float]:
    table = clone(original, tmp_path / f"ours-{files}")
    cache = SnapshotCache(LogReader.at(str(table)))
    await cache.open()
    seconds = await time_advances(table, 2 * files, commits, cache.advance)
    shutil.rmtree(table)
    return seconds


async def test_advance_by_one_commit(tmp_path: Path, report: Report) -> None:
    ours = await our_advances(big_checkpoint(MILLION), MILLION, tmp_path, 500)
    five = await our_advances(big_checkpoint(5 * MILLION), 5 * MILLION, tmp_path, 500)
    table = clone(big_checkpoint(MILLION), tmp_path / "peer")
    delta = deltalake.DeltaTable(table)

    async def update() -> object:
        delta.update_incremental()
        return delta.version()

    peer = await time_advances(table, 2 * MILLION, 5, update)
    ours_p50, five_p50, peer_p50 = map(statistics.median, (ours, five, peer))
    p99 = statistics.quantiles(ours, n=100)[98]
    report(
        [
            Row(
                "advance by 10 files on 1M, p50",
                milliseconds(ours_p50),
                milliseconds(peer_p50),
                ours_p50 / peer_p50,
                "<= 0.3 ms, <= 1/3000",
                ours_p50 <= 0.0003 and peer_p50 / ours_p50 >= 3000,
            ),
            Row("advance on 1M, p99", milliseconds(p99), "", None, "<= 1 ms", p99 <= 0.001),
            Row(
                "advance on 5M, against ours on 1M, p50",
                milliseconds(five_p50),
                milliseconds(ours_p50),
                five_p50 / ours_p50,
                "<= 1.5x",
                five_p50 <= 1.5 * ours_p50,
            ),
        ]
    )
