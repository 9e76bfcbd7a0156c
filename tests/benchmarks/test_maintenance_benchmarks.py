"""Checkpoints, compactions and checksums of large tables, against deltalake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.benchmarks.big_tables import (
    FILES_PER_COMMIT,
    add_of,
    big_checkpoint,
    clone,
    many_commits,
    path_of,
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
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

MILLION = 1_000_000
TIMES = 3

OUR_CHECKPOINT = """
    import asyncio, sys, time
    from tailerd.formats.delta.log.log_reader import LogReader
    from tailerd.formats.delta.log.log_writer import LogWriter

    async def job():
        reader = LogReader.at(sys.argv[1])
        snapshot = await reader.open()
        open("/proc/self/clear_refs", "w").write("5")
        start = time.perf_counter()
        result = await LogWriter(reader).write_checkpoint(snapshot)
        assert result.outcome == "written", result
        return {"seconds": time.perf_counter() - start, "bytes": result.size_bytes}

    result = asyncio.run(job())
"""
PEER_CHECKPOINT = """
    import sys, time, pathlib
    import deltalake
    table = deltalake.DeltaTable(sys.argv[1])
    open("/proc/self/clear_refs", "w").write("5")
    start = time.perf_counter()
    table.create_checkpoint()
    seconds = time.perf_counter() - start
    name = f"{table.version():020}.checkpoint.parquet"
    size = (pathlib.Path(sys.argv[1]) / "_delta_log" / name).stat().st_size
    result = {"seconds": seconds, "bytes": size}
"""
# A daemon holds the snapshot: opened once, carried on by each commit, based on what it wrote.
OUR_INCREMENTAL = """
    import asyncio, sys, time
    from tailerd.formats.delta.log.log_reader import LogReader
    from tailerd.formats.delta.log.log_writer import LogWriter
    from tailerd.formats.delta.stats.table_growth import SnapshotCache

    async def job():
        reader, version = LogReader.at(sys.argv[1]), int(sys.argv[2])
        writer = LogWriter(reader)
        first = await writer.write_checkpoint(await reader.open(version))
        snapshot = first.rebased
        while file := await reader.commit_file(snapshot.version + 1):
            snapshot = snapshot.advance((await reader.read_commit(file)).commit)
        open("/proc/self/clear_refs", "w").write("5")
        start = time.perf_counter()
        result = await writer.write_checkpoint(snapshot)
        seconds = time.perf_counter() - start
        assert result.outcome == "written" and result.reused_files, result
        return {"seconds": seconds, "bytes": result.size_bytes, "reused": len(result.reused_files)}

    result = asyncio.run(job())
"""
OUR_COMPACTION = """
    import asyncio, sys, time
    from tailerd.formats.delta.log.log_reader import LogReader
    from tailerd.formats.delta.log.log_writer import LogWriter

    async def job():
        reader = LogReader.at(sys.argv[1])
        snapshot, _ = await reader.open_listed(with_files=False)
        start = time.perf_counter()
        result = await LogWriter(reader).write_compaction(snapshot.state, 1, 1000)
        assert result.outcome == "written", result
        return {"seconds": time.perf_counter() - start}

    result = asyncio.run(job())
"""
PEER_COMPACTION = """
    import sys, time
    import deltalake
    table = deltalake.DeltaTable(sys.argv[1])
    start = time.perf_counter()
    table.compact_logs(1, 1000)
    result = {"seconds": time.perf_counter() - start}
"""
OUR_CHECKSUMS = """
    import asyncio, statistics, sys, time
    from tailerd.formats.delta.log.log_reader import LogReader
    from tailerd.formats.delta.log.log_writer import LogWriter

    async def job():
        reader = LogReader.at(sys.argv[1])
        writer, snapshot, times = LogWriter(reader), await reader.open(1000), []
        await writer.write_checksum(snapshot)
        while file := await reader.commit_file(snapshot.version + 1):
            commit = (await reader.read_commit(file)).commit
            snapshot = snapshot.advance(commit)
            start = time.perf_counter()
            result = await writer.write_checksum(snapshot, commit.info)
            times.append(time.perf_counter() - start)
            assert result.outcome == "written"
        return {"seconds": statistics.median(times), "files": snapshot.num_files}

    result = asyncio.run(job())
"""


def on_clone(original: Path, folder: Path, program: str, *arguments: str) -> Measured:
    """Run a program on a copy of a table that nobody has touched."""
    table = clone(original, folder)
    try:
        return run_process(program, table, *arguments)
    finally:
        shutil.rmtree(folder)


def row(work: str, ours: float, peer: float, goal: float, spell: object) -> Row:
    ratio = ours / peer
    as_text = spell if callable(spell) else str
    return Row(work, as_text(ours), as_text(peer), ratio, f"<= {goal}x", ratio <= goal)


def test_a_v1_checkpoint_of_a_million_files(tmp_path: Path, report: Report) -> None:
    original = big_checkpoint(MILLION)
    ours, peer = paired(
        lambda: on_clone(original, tmp_path / "ours", OUR_CHECKPOINT),
        lambda: on_clone(original, tmp_path / "peer", PEER_CHECKPOINT),
        TIMES,
    )
    mine, theirs = ours.result, peer.result
    report(
        [
            row("V1 checkpoint, 1M: time", mine["seconds"], theirs["seconds"], 0.2, milliseconds),
            row("V1 checkpoint, 1M: bytes", mine["bytes"], theirs["bytes"], 0.3, mebibytes),
            row("V1 checkpoint, 1M: memory", ours.peak_bytes, peer.peak_bytes, 0.2, mebibytes),
        ]
    )


def test_a_v2_checkpoint_after_a_hundred_commits(tmp_path: Path, report: Report) -> None:
    original = big_checkpoint(MILLION)
    base = clone(original, tmp_path / "v2")
    table = wide_table(base, reader_features=["v2Checkpoint"])
    table.version = max(int(path.stem) for path in table.log.glob("*.json"))
    table.commit(table.protocol())
    version = table.version
    small_commits(table, 100)
    ours, peer = paired(
        lambda: on_clone(base, tmp_path / "ours", OUR_INCREMENTAL, str(version)),
        lambda: on_clone(original, tmp_path / "peer", PEER_CHECKPOINT),
        TIMES,
    )
    mine, theirs = ours.result, peer.result
    report(
        [
            row("V2 after 100 commits, 1M: time", mine["seconds"], theirs["seconds"], 0.03,
                milliseconds),
            row("V2 after 100 commits, 1M: bytes", mine["bytes"], theirs["bytes"], 0.05, mebibytes),
        ]
    )  # fmt: skip


def small_commits(table: TableBuilder, count: int) -> None:
    """Append ten files a commit, and remove one of those that came just before."""
    first = 2 * MILLION
    for number in range(count):
        at = first + number * FILES_PER_COMMIT
        adds = [add_of(at + i) for i in range(FILES_PER_COMMIT)]
        gone = [{"remove": {"path": path_of(at - 1), "dataChange": True,
                            "deletionTimestamp": 4_000_000_000_000}}] if number else []  # fmt: skip
        table.commit(*adds, *gone)


def test_a_compaction_of_a_thousand_commits(tmp_path: Path, report: Report) -> None:
    original = many_commits(10_000)
    ours, peer = paired(
        lambda: on_clone(original, tmp_path / "ours", OUR_COMPACTION),
        lambda: on_clone(original, tmp_path / "peer", PEER_COMPACTION),
        TIMES,
    )
    report([row("compaction of 1,000 commits", ours.result["seconds"], peer.result["seconds"],
                0.1, milliseconds)])  # fmt: skip


def test_a_checksum_for_each_commit(tmp_path: Path, report: Report) -> None:
    ours = on_clone(big_checkpoint(MILLION), tmp_path / "ours", OUR_CHECKSUMS)
    seconds = ours.result["seconds"]
    assert ours.result["files"] > MILLION
    report(
        [
            Row(
                "checksum of a commit, 1M files",
                milliseconds(seconds),
                "",
                None,
                "<= 2 ms",
                seconds <= 0.002,
            )
        ]
    )
