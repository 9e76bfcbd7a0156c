"""Checkpoints against Delta Spark's own, and what both peers gain where a log was kept short.

The peer runs with local[2] and 4 GB, and is warm: it has done the same before. Both sides are timed
from an open snapshot on.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import ChecksumPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy
from tests.benchmarks.big_tables import big_checkpoint, clone, many_commits, wide_table
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import (
    Row,
    mebibytes,
    milliseconds,
    run_process,
)
from tests.benchmarks.test_maintenance_benchmarks import (
    MILLION,
    OUR_CHECKPOINT,
    OUR_INCREMENTAL,
    on_clone,
    row,
    small_commits,
)
from tests.maintenance.delta_spark import DeltaSpark
from tests.spark_session import require_java

pytestmark = [pytest.mark.benchmark, pytest.mark.slow, pytest.mark.spark]

COMMITS = 10_000
COLD_OPEN = """
    import sys, time
    import deltalake
    start = time.perf_counter()
    files = len(deltalake.DeltaTable(sys.argv[1]).file_uris())
    result = {"seconds": time.perf_counter() - start, "files": files}
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeltaSpark]:
    require_java()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 4g pyspark-shell")
        patch.setattr("tests.maintenance.delta_spark.ANSWER_SECONDS", 900)
        server = DeltaSpark(tmp_path_factory.mktemp("peer") / "log", is_measured=True)
        try:
            server.wait_ready()
            yield server
        finally:
            server.close()


def checkpoint_by_spark(peer: DeltaSpark, original: Path, folder: Path) -> dict[str, Any]:
    """Let the peer write a checkpoint of a copy; return its seconds and bytes."""
    table = clone(original, folder)
    before = sizes(table)
    try:
        seconds = peer.ask("timed checkpoint", path=str(table))
        new = {name: size for name, size in sizes(table).items() if name not in before}
        written = sum(size for name, size in new.items() if "checkpoint" in name)
        return {"seconds": seconds, "bytes": written + sidecar_bytes(new)}
    finally:
        shutil.rmtree(folder)


def sizes(table: Path) -> dict[str, int]:
    log = table / "_delta_log"
    return {str(p.relative_to(log)): p.stat().st_size for p in log.rglob("*") if p.is_file()}


def sidecar_bytes(files: dict[str, int]) -> int:
    return sum(size for name, size in files.items() if name.startswith("_sidecars/"))


def test_a_v1_checkpoint_of_a_million_files_against_delta_spark(
    peer: DeltaSpark, tmp_path: Path, report: Report
) -> None:
    original = big_checkpoint(MILLION)
    checkpoint_by_spark(peer, original, tmp_path / "warm")
    theirs = checkpoint_by_spark(peer, original, tmp_path / "peer")
    mine = on_clone(original, tmp_path / "ours", OUR_CHECKPOINT).result
    work = "V1 checkpoint, 1M, Delta Spark"
    report([row(f"{work}: time", mine["seconds"], theirs["seconds"], 0.5, milliseconds)])


def test_a_v2_checkpoint_after_a_hundred_commits_against_delta_spark(
    peer: DeltaSpark, tmp_path: Path, report: Report
) -> None:
    base = clone(big_checkpoint(MILLION), tmp_path / "v2")
    table = wide_table(base, reader_features=["v2Checkpoint"])
    table.version = max(int(path.stem) for path in table.log.glob("*.json"))
    table.commit(table.protocol())
    version = table.version
    small_commits(table, 100)
    theirs = checkpoint_by_spark(peer, base, tmp_path / "peer")
    mine = on_clone(base, tmp_path / "ours", OUR_INCREMENTAL, str(version)).result
    work = "V2 after 100 commits, 1M, Delta Spark"
    report(
        [
            row(f"{work}: time", mine["seconds"], theirs["seconds"], 0.03, milliseconds),
            row(f"{work}: bytes", mine["bytes"], theirs["bytes"], 0.05, mebibytes),
        ]
    )


def test_a_cold_open_of_ten_thousand_commits_before_and_after(
    peer: DeltaSpark, tmp_path: Path, report: Report
) -> None:
    """All jobs, cleanup included: the commits are years old, and listings are half of an open."""
    before = many_commits(COMMITS)
    after = clone(before, tmp_path / "after")
    asyncio.run(maintain(after))
    opened = {table: run_process(COLD_OPEN, table).result for table in (before, after)}
    files = opened[before]["files"]
    assert opened[after]["files"] == files

    def by_spark(table: Path) -> float:
        seen = peer.ask("timed open", path=str(table))
        assert seen["files"] == files
        return float(seen["seconds"])

    for _ in range(3):
        # Java is warm afterwards; the log is opened anew each time.
        by_spark(after)
    times = statistics.median(by_spark(after) for _ in range(3))
    report(
        [
            faster("deltalake", opened[after]["seconds"], opened[before]["seconds"]),
            faster("Delta Spark", times, by_spark(before)),
        ]
    )


async def maintain(table: Path) -> None:
    work = DeltaMaintenance(
        LogReader.at(str(table)),
        Policies(checksum=ChecksumPolicy(is_enabled=True), cleanup=CleanupPolicy(is_enabled=True)),
    )
    for _ in range(2):
        assessment = await work.assessment()
        for decision in assessment.decisions:
            if decision.is_due:
                await work.apply(assessment, decision)
    assert len(list((table / "_delta_log").glob("*.json"))) == 1


def faster(who: str, after: float, before: float) -> Row:
    ratio = after / before
    work = f"cold open of 10,000 commits by {who}: after, before maintenance"
    return Row(work, milliseconds(after), milliseconds(before), ratio, "<= 0.05x", ratio <= 0.05)
