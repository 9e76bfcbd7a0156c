"""What `test_spark_benchmarks` times, each in its own process: ours and Delta's, in turns.

Each function starts Spark, warms both sides up and returns a dictionary of medians.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.benchmarks.spark_peer import HeapWatch, in_turns, source_peak_bytes, start_session
from tests.tables.builder import CDF, TableBuilder

SOURCES = {"ours": ("tailerd", {}), "peer": ("delta", {"readChangeFeed": "true"})}
CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
PLANNING = ("latestOffset", "getBatch", "queryPlanning")
TIMEOUT_SECONDS = 300
ROUNDS, WARM_COMMITS, COMMITS = 2, 5, 12

Options = dict[str, Any]


def batch(table: str, columns: str) -> dict[str, float]:
    """Read all changes to noop, with all columns or with `columns`, `a,b`."""
    spark = start_session()
    expected = [*columns.split(","), *CHANGE_COLUMNS] if columns else ["*"]

    def ours() -> DataFrame:
        options = {"columns": columns} if columns else {}
        return _changes(spark.read, "ours", table, startingVersion=0, **options)

    def peer() -> DataFrame:
        return _changes(spark.read, "peer", table, startingVersion=0).select(*expected)

    rows = ours().count()
    assert rows == peer().count()
    return {"rows": rows, **in_turns(lambda: _to_noop(ours()), lambda: _to_noop(peer()))}


def catch_up(table: str, max_files: str) -> dict[str, float]:
    """Stream all commits to noop with availableNow; each run begins without a checkpoint."""
    spark = start_session()
    seen: dict[str, tuple[int, int]] = {}

    def run(side: str) -> None:
        frame = _changes(
            spark.readStream, side, table, startingVersion=0, maxFilesPerTrigger=max_files
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            query = _start(frame, checkpoint, "noop", availableNow=True)
            assert query.awaitTermination(TIMEOUT_SECONDS)
            progress = query.recentProgress
        seen[side] = sum(p.numInputRows for p in progress), len(progress)

    times = in_turns(lambda: run("ours"), lambda: run("peer"))
    assert seen["ours"][0] == seen["peer"][0], seen
    return {"rows": seen["ours"][0], "batches": seen["ours"][1], **times}


def plan_snapshot(table: str, max_files: str) -> dict[str, float]:
    """Plan the first micro-batch of a stream that begins with the snapshot.

    Returns:
        Of each side: seconds of planning; `_first`, seconds from `load` to the end of the
        micro-batch; `_bytes`, what the driver needs at most, code apart: live objects in Java, and
        for ours the peak of the source's process besides, Python's own objects included;
        `ours_with_code`, the same with the libraries mapped into that process.
    """
    spark = start_session()

    def run(side: str) -> dict[str, float]:
        start = time.perf_counter()
        progress = _first_batch(spark, side, table, max_files)
        seconds = time.perf_counter() - start
        return {side: _planning(progress), f"{side}_first": seconds}

    runs = [{**run("ours"), **run("peer")} for _ in range(3)][1:]
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    for side in SOURCES:
        # Apart from the timed runs, because collecting all the time takes its time.
        with HeapWatch(spark) as heap:
            own, with_code = _first_batch(spark, side, table, max_files, is_peak_wanted=True)
        found[f"{side}_bytes"] = heap.growth_bytes + own
        found[f"{side}_with_code"] = heap.growth_bytes + with_code
    return found


def _first_batch(
    spark: SparkSession, side: str, table: str, max_files: str, *, is_peak_wanted: bool = False
) -> Any:
    """Return the report of the first micro-batch, or `source_peak_bytes`, of the peer's none."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    reader = spark.readStream.format(SOURCES[side][0]).option("maxFilesPerTrigger", max_files)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = _start(reader.load(table), checkpoint, "noop", processingTime="1 hour")
        [progress] = _progress(query, 1)
        peak = source_peak_bytes() if is_peak_wanted and side == "ours" else (0, 0)
        query.stop()
    return peak if is_peak_wanted else progress


def plan_commits(table: str, first: str, commits: str) -> dict[str, float]:
    """Plan one micro-batch after another, each of one commit, all of them there already.

    Returns:
        Of each side seconds in the source, that is of `latestOffset` and `getBatch`; with `_all`,
        and Spark's planning of the query, which calls our `partitions`.
    """
    spark = start_session()
    found: dict[str, list[float]] = {}
    for warm_up in (True, False):
        for side in SOURCES:
            # The tables of this size have no change feed, and appends need none.
            reader = spark.readStream.format(SOURCES[side][0]).option("maxFilesPerTrigger", 1)
            with tempfile.TemporaryDirectory() as checkpoint:
                frame = reader.option("startingVersion", first).load(table)
                query = _start(frame, checkpoint, "noop", processingTime="0 seconds")
                progress = _progress(query, int(commits))
                query.stop()
            for each in () if warm_up else progress[1:]:
                found.setdefault(side, []).append(_planning(each, PLANNING[:2]))
                found.setdefault(f"{side}_all", []).append(_planning(each))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _planning(progress: Any, names: tuple[str, ...] = PLANNING) -> float:
    milliseconds: float = sum(progress.durationMs.get(name, 0) for name in names)
    return milliseconds / 1000


def latency() -> dict[str, float]:
    """Commit, and wait until the rows are in the sink: seconds of each side, medians.

    The sinks are Spark's own JSON files.
    """
    spark = start_session()
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(ROUNDS):
        for name, found in seconds.items():
            times = _latency_of(spark, name)
            # The first round warms Java up.
            found += times if number else []
    return {name: statistics.median(found) for name, found in seconds.items()}


def _latency_of(spark: SparkSession, side: str) -> list[float]:
    folder = Path(tempfile.mkdtemp(prefix="tailerd-latency-"))
    try:
        table = TableBuilder(folder / "table", properties=CDF, start_ms=None)
        table.create()
        frame = _changes(spark.readStream, side, str(table.folder), startingVersion=0)
        query = _start(frame, str(folder / "checkpoint"), "json", path=str(folder / "out"))
        times = [_commit_to_sink(table, folder) for _ in range(WARM_COMMITS + COMMITS)]
        query.stop()
        return times[WARM_COMMITS:]
    finally:
        shutil.rmtree(folder)


def _commit_to_sink(table: TableBuilder, folder: Path) -> float:
    """Commit a hundred rows; return after how many seconds one more batch is in the sink."""
    rows = [{"id": number, "name": f"name-{number}"} for number in range(100)]
    [add] = table.data_files(rows)
    before = _batches(folder)
    start = time.perf_counter()
    table.commit(add)
    while _batches(folder) == before:
        assert time.perf_counter() - start < TIMEOUT_SECONDS
        time.sleep(0.002)
    seconds = time.perf_counter() - start
    # The query has come to rest, and looks for the next commit.
    time.sleep(0.3)
    return seconds


def _batches(folder: Path) -> set[str]:
    done = folder.glob("out/_spark_metadata/*")
    return {path.name for path in done if not path.name.startswith(".")}


def _changes(reader: Any, side: str, table: str, **options: Any) -> DataFrame:
    kind, own = SOURCES[side]
    frame: DataFrame = reader.format(kind).options(**own, **options).load(table)
    return frame


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _start(
    frame: DataFrame, checkpoint: str, sink: str, path: str = "", **trigger: Any
) -> StreamingQuery:
    writer = frame.writeStream.format(sink).option("checkpointLocation", checkpoint)
    if path:
        writer = writer.option("path", path)
    return (writer.trigger(**trigger) if trigger else writer).start()


def _progress(query: StreamingQuery, batches: int) -> list[Any]:
    """Wait until as many micro-batches with rows are reported, and return them."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        found = [each for each in query.recentProgress if each.numInputRows]
        if len(found) >= batches:
            return found[:batches]
        failure = query.exception()
        assert failure is None, failure
        time.sleep(0.02)
    raise AssertionError(query.status)
