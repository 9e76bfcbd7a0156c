"""Change rows against deltalake, latency of `tail`, and Spark against its own Parquet reader."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.benchmarks.big_tables import big_checkpoint, change_feed, clone, wide_table
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import (
    ROOT,
    Row,
    mebibytes,
    milliseconds,
    paired,
    per_second,
    run_process,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

COMMITS, ROWS = 1000, 5000
MILLION = 1_000_000

OURS = """
    import asyncio, sys, time
    from tailerd.arrow_start import start_arrow

    # As every process of tailerd begins.
    start_arrow()
    from tailerd.changefeed.change_task import ChangeMode
    from tailerd.changefeed.limits import BatchLimit, ReadLimit
    from tailerd.pipeline.change_stream import ChangeStream
    from tailerd.formats.base import OpenRequest
    from tests.tables.opened import open_delta

    async def main():
        begin = time.perf_counter()
        source = await open_delta(sys.argv[1], OpenRequest(changes=ChangeMode.CDF))
        start = time.perf_counter()
        offset, rows = await source.initial_offset("0"), 0
        while (end := await source.latest_offset(offset, ReadLimit())) != offset:
            stream = ChangeStream(source, offset, end, limit=BatchLimit())
            async for batch in stream.batches():
                rows += batch.num_rows
            await source.commit(end)
            offset = end
        now = time.perf_counter()
        return {"rows": rows, "seconds": now - begin, "opened_seconds": now - start}

    result = asyncio.run(main())
"""
PEER = """
    import sys, time
    import deltalake
    begin = time.perf_counter()
    table = deltalake.DeltaTable(sys.argv[1])
    start, rows = time.perf_counter(), 0
    for batch in table.load_cdf(starting_version=0):
        rows += batch.num_rows
    now = time.perf_counter()
    result = {"rows": rows, "seconds": now - begin, "opened_seconds": now - start}
"""


def test_change_rows_of_a_thousand_commits(report: Report) -> None:
    table = change_feed(COMMITS, ROWS)
    ours, peer = paired(lambda: run_process(OURS, table), lambda: run_process(PEER, table))
    assert ours.result["rows"] == peer.result["rows"]
    rows = ours.result["rows"]
    ratio = peer.result["seconds"] / ours.result["seconds"]
    opened = peer.result["opened_seconds"] / ours.result["opened_seconds"]
    report(
        [
            Row(
                f"change rows of {COMMITS:,} commits ({rows / 1e6:.1f}M rows), from opening on",
                per_second(rows, ours.result["seconds"]),
                per_second(rows, peer.result["seconds"]),
                ratio,
                ">= 1.3x",
                ratio >= 1.3,
            ),
            Row(
                "  the same, of a table that is open already",
                per_second(rows, ours.result["opened_seconds"]),
                per_second(rows, peer.result["opened_seconds"]),
                opened,
                "",
                True,
            ),
            Row(
                "  the same: peak memory of the process",
                mebibytes(ours.peak_bytes),
                mebibytes(peer.peak_bytes),
                ours.peak_bytes / peer.peak_bytes,
                "<= 400 MiB",
                ours.peak_bytes <= 400 * 2**20,
            ),
        ]
    )


@contextmanager
def tail(table: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tailerd", "tail", str(table), "--format", "jsonl"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def next_line(process: subprocess.Popen[bytes], timeout_seconds: float) -> dict[str, object] | None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_seconds)
    if not ready:
        return None
    line = os.read(process.stdout.fileno(), 1 << 20).splitlines()[-1]
    return dict(json.loads(line))


def test_a_commit_becomes_a_line_of_tail_on_a_million_files(tmp_path: Path, report: Report) -> None:
    table = wide_table(clone(big_checkpoint(MILLION), tmp_path / "table"), start_ms=None)
    table.version = max(int(path.stem) for path in table.log.glob("*.json"))
    seconds = []
    with tail(table.folder) as process:
        for number in range(60):
            row = {"id": number, "customer": "c", "date": "2026-01-01"}
            [add] = table.data_files([row])
            start = time.perf_counter()
            table.commit(add)
            line = next_line(process, 5)
            if number < 10:
                # While it starts, lines may be late; rows before its start are not shown.
                time.sleep(0.2)
                continue
            assert line is not None
            assert line["id"] == number
            seconds.append(time.perf_counter() - start)
            time.sleep(0.03)
    p50, p99 = statistics.median(seconds), max(seconds)
    report(
        [
            Row(
                "commit to JSON line of tail, 1M files, p50",
                milliseconds(p50),
                "",
                None,
                "<= 10 ms",
                p50 <= 0.010,
            ),
            Row("  the same, slowest of 50", milliseconds(p99), "", None, "", True),
        ]
    )


SPARK = """
    import sys, time
    import tailerd.spark
    from tailerd.spark.session import local_session

    spark = local_session("benchmark", "local[2]", {"spark.ui.enabled": "false"})
    tailerd.spark.register(spark)
    schema = "id long, name string, amount double, updated timestamp"
    table = sys.argv[1]

    def ours():
        changes = spark.read.format("tailerd").option("startingVersion", "0").load(table)
        changes.write.format("noop").mode("overwrite").save()

    def peer():
        files = spark.read.schema(schema + ", _change_type string").parquet(*files_read)
        files.write.format("noop").mode("overwrite").save()

    def seconds(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    import json, pathlib
    files_read = []
    for commit in sorted(pathlib.Path(table, "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        kind = "cdc" if any("cdc" in action for action in actions) else "add"
        files_read += [f"{table}/{a[kind]['path']}" for a in actions if kind in a]
    ours(), peer()
    runs = [(seconds(ours), seconds(peer)) for _ in range(3)]
    result = {"ours": sorted(r[0] for r in runs)[1], "peer": sorted(r[1] for r in runs)[1]}
    spark.stop()
"""


@pytest.mark.spark
def test_spark_batch_read_of_the_same_change_rows(report: Report) -> None:
    run = run_process(SPARK, change_feed(COMMITS, ROWS))
    rows = (COMMITS - 1) * ROWS
    ratio = run.result["peer"] / run.result["ours"]
    report(
        [
            Row(
                f"Spark batch read of {rows / 1e6:.1f}M change rows to noop",
                per_second(rows, run.result["ours"]),
                per_second(rows, run.result["peer"]),
                ratio,
                ">= 0.7x",
                ratio >= 0.7,
            )
        ]
    )
