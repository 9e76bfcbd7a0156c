"""Exact changes of Delta tables without a feed, planned from the log and read as pipelines do.

Against DuckDB and polars over the same files, PyArrow reading them once, and our own raw changes.
Whole processes, in turns; times are those of the work, without imports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Measured, Row, mebibytes, middle, run_process
from tests.benchmarks.rewritten_files import ID_COLUMN, VERSION_COLUMN, rewritten_files
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import Action

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

FILES, ROWS = 10, 1_000_000
COMMITS = 1000
TIMES = 3
MIB = 1 << 20
FIELDS = (
    ("id", "long"),
    ("customer", "string"),
    ("product", "string"),
    ("status", "string"),
    ("quantity", "integer"),
    ("amount", "double"),
    ("updated", "timestamp"),
)
TRACKING = ("rowTracking", "domainMetadata")
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": ID_COLUMN,
    "delta.rowTracking.materializedRowCommitVersionColumnName": VERSION_COLUMN,
}

OURS = """
    import asyncio, sys, time
    from contextlib import aclosing
    from pathlib import Path
    import pyarrow as pa
    from tailerd.changefeed.change_task import ChangeMode
    from tailerd.changefeed.limits import BatchLimit, ReadLimit
    from tailerd.formats.base import OpenRequest
    from tests.tables.opened import open_delta
    from tailerd.pipeline.change_stream import ChangeStream
    from tailerd.pipeline.memory_budget import MemoryBudget
    table, mode, key, megabytes = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    first = (sys.argv[5:] or ["1"])[0]
    identity = [key] if key else []
    memory = MemoryBudget(megabytes * 2**20).join()
    limit = BatchLimit(memory_bytes=megabytes * 2**20)

    async def changes():
        source = await open_delta(
            table, OpenRequest(changes=ChangeMode(mode), identity=identity)
        )
        at = await source.initial_offset(first)
        found = {}
        while (end := await source.latest_offset(at, ReadLimit())) != at:
            stream = ChangeStream(source, at, end, limit=limit, memory=memory)
            async with aclosing(stream.batches()) as batches:
                async for batch in batches:
                    for kind, count in batch.count_changes().items():
                        found[kind] = found.get(kind, 0) + count
            await source.commit(end)
            at = end
        return found

    # With the first value Arrow imports pandas where it is there; imports are not measured.
    pa.scalar(0)
    idle = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    open("/proc/self/clear_refs", "w").write("5")
    start, start_cpu = time.perf_counter(), time.process_time()
    found = asyncio.run(changes())
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds, "idle": idle, "found": found}
"""

PRELUDE = """
    import sys, time
    from pathlib import Path
    import pyarrow as pa
    import pyarrow.parquet as pq
    folder, added, megabytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    before = sorted(map(str, (folder / "before").iterdir()))
    after = sorted(map(str, (folder / added).iterdir()))
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
"""

READING = (
    PRELUDE
    + """
    start, start_cpu = time.perf_counter(), time.process_time()
    rows = sum(
        batch.num_rows
        for path in (*before, *after)
        for batch in pq.ParquetFile(path, memory_map=True).iter_batches(1 << 16, use_threads=True)
    )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds, "rows": rows}
"""
)

DUCKDB = (
    PRELUDE
    + """
    import duckdb
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    start, start_cpu = time.perf_counter(), time.process_time()
    deleted, inserted = (
        connection.execute(
            "SELECT * FROM read_parquet($one) EXCEPT ALL SELECT * FROM read_parquet($other)",
            {"one": one, "other": other},
        ).to_arrow_table()
        for one, other in ((before, after), (after, before))
    )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds}
    result |= {"deleted": len(deleted), "inserted": len(inserted)}
"""
)

POLARS = (
    PRELUDE
    + """
    import polars as pl
    start, start_cpu = time.perf_counter(), time.process_time()
    one, other = pl.scan_parquet(before), pl.scan_parquet(after)
    columns = one.collect_schema().names()
    deleted, inserted = (
        left.join(right, on=columns, how="anti", nulls_equal=True).collect(engine="streaming")
        for left, right in ((one, other), (other, one))
    )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds}
    result |= {"deleted": len(deleted), "inserted": len(inserted)}
"""
)


def make_table(folder: Path, added: str, home: Path, *, is_preserved: bool = False) -> Path:
    """Write a table whose version 1 replaces the files of `before` by those of `added`.

    Args:
        is_preserved: Whether the commit says that the rows kept their ids.
    """
    table = TableBuilder(home, fields=FIELDS, writer_features=TRACKING, properties=TRACKED)
    before, after = (
        [
            _linked(home, file, version, number * ROWS)
            for number, file in enumerate(sorted((folder / name).iterdir()))
        ]
        for version, name in enumerate(("before", added))
    )
    table.create(*before)
    tags = {"delta.rowTracking.preserved": "true"} if is_preserved else None
    table.commit(*map(table.remove, before), *after, tags=tags)
    return table.folder


def _linked(home: Path, file: Path, version: int, first_id: int) -> Action:
    """Return the `add` of a file that the table shares with the peers."""
    name = f"{file.parent.name}-{file.name}"
    home.mkdir(exist_ok=True)
    (home / name).hardlink_to(file)
    size = file.stat().st_size
    body = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0}
    ids = {"baseRowId": first_id, "defaultRowCommitVersion": version}
    return {"add": {**body, **ids, "dataChange": True}}


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder on the file system of the benchmark's files, for links to them."""
    with tempfile.TemporaryDirectory(dir=rewritten_files(FILES, ROWS).parent) as folder:
        yield Path(folder)


def measured(**programs: tuple[str, ...]) -> dict[str, Measured]:
    """Run programs in turns; return their medians by name."""
    runs: dict[str, list[Measured]] = {name: [] for name in programs}
    for _ in range(TIMES):
        for name, (program, *arguments) in programs.items():
            runs[name].append(run_process(program, *arguments))
    return {name: middle(each) for name, each in runs.items()}


def against(work: str, ours: Measured, peer: Measured, times: float) -> Row:
    """Return a row of the table: how many times faster ours is."""
    one, other = ours.result["seconds"], peer.result["seconds"]
    goal, ratio = f">= {times}x", other / one
    return Row(work, f"{one:.2f} s", f"{other:.2f} s", ratio, goal, ratio >= times)


def at_most(work: str, ours: Measured, peer: Measured, times: float) -> Row:
    """Return a row of the table: how much more processor time ours takes.

    Both keep all cores busy. Wall time on a machine that others use too says less.
    """
    one, other = ours.result["cpu_seconds"], peer.result["cpu_seconds"]
    goal, ratio = f"<= {times}x", one / other
    return Row(work, f"{one:.2f} s CPU", f"{other:.2f} s CPU", ratio, goal, ratio <= times)


def memory_of(work: str, ours: Measured, most: int) -> Row:
    above = ours.peak_bytes - ours.result["idle"]
    return Row(work, mebibytes(above), "", None, f"<= {most} MiB", above <= most * MIB)


def test_one_row_of_each_of_ten_files_updated(report: Report, home: Path) -> None:
    folder = rewritten_files(FILES, ROWS)
    table, peer = str(make_table(folder, "after", home)), (str(folder), "after", "256")
    found = measured(
        plain=(OURS, table, "auto", "", "256"),
        keyed=(OURS, table, "auto", "id", "256"),
        reading=(READING, *peer),
        duckdb=(DUCKDB, *peer),
        polars=(POLARS, *peer),
    )
    plain, keyed = found["plain"], found["keyed"]
    assert plain.result["found"] == {"delete": FILES, "insert": FILES}
    assert keyed.result["found"] == {"update_preimage": FILES, "update_postimage": FILES}
    report(
        [
            against("commit updating 1 row of each of 10 x 1M, DuckDB", plain, found["duckdb"], 6),
            against("  the same, polars anti joins", plain, found["polars"], 3),
            at_most("  the same, PyArrow reading both sides", plain, found["reading"], 1.3),
            memory_of("  the same: memory above idle with 256 MiB", plain, 256),
            against("  as updates by key, DuckDB", keyed, found["duckdb"], 6),
        ]
    )


def test_all_rows_rewritten_in_another_order(report: Report, home: Path) -> None:
    folder = rewritten_files(FILES, ROWS)
    table, peer = str(make_table(folder, "shuffled", home)), (str(folder), "shuffled", "256")
    found = measured(
        ours=(OURS, table, "auto", "", "256"), duckdb=(DUCKDB, *peer), polars=(POLARS, *peer)
    )
    ours = found["ours"]
    assert ours.result["found"] == {"delete": FILES, "insert": FILES}
    report(
        [
            against("commit rewriting 10M rows in another order", ours, found["duckdb"], 3),
            against("  the same, polars anti joins", ours, found["polars"], 1),
            memory_of("  the same: memory above idle with 256 MiB", ours, 256),
        ]
    )


def test_rows_that_kept_their_ids_in_another_order(report: Report, home: Path) -> None:
    folder = rewritten_files(FILES, ROWS)
    tables = {
        is_preserved: str(
            make_table(folder, "tracked", home / str(is_preserved), is_preserved=is_preserved)
        )
        for is_preserved in (True, False)
    }
    found = measured(
        ids=(OURS, tables[True], "auto", "", "256"), values=(OURS, tables[False], "auto", "", "256")
    )
    ids, values = found["ids"], found["values"]
    assert ids.result["found"] == {"update_preimage": FILES, "update_postimage": FILES}
    assert values.result["found"] == {"delete": FILES, "insert": FILES}
    report(
        [
            at_most("the same with row tracking, without", ids, values, 0.4),
            memory_of("  the same: memory above idle with 256 MiB", ids, 256),
        ]
    )


@pytest.mark.parametrize(
    ("work", "rows", "ours", "peer", "times"),
    [
        # Against a table so large that comparing all of it would show.
        ("net changes of 1,000 commits, commit by commit", ROWS, ("net", 2), ("auto", 2), 0.1),
        ("1,000 small commits, raw", 100, ("auto", 1), ("files", 1), 1.3),
    ],
)
def test_many_small_commits(
    report: Report,
    tmp_path: Path,
    work: str,
    rows: int,
    ours: tuple[str, int],
    peer: tuple[str, int],
    times: float,
) -> None:
    table = TableBuilder(tmp_path / "t")
    kept = [{"id": number, "name": "a"} for number in range(100)]
    if rows > len(kept):
        table.append([{"id": number, "name": "a"} for number in range(rows)])
    [add] = table.append(kept).adds
    for version in range(COMMITS):
        kept[version % 100] = {"id": version % 100, "name": f"n{version}"}
        following = table.data_file(kept)
        table.commit(table.remove(add), following)
        add = following
    location = str(table.folder)
    found = measured(
        ours=(OURS, location, ours[0], "", "256", str(ours[1])),
        peer=(OURS, location, peer[0], "", "256", str(peer[1])),
    )
    one, other = found["ours"].result["seconds"], found["peer"].result["seconds"]
    if ours[0] == "net":
        assert found["ours"].result["found"] == {"delete": 100, "insert": 100}
    goal, ratio = f"<= {times}x", one / other
    report([Row(work, f"{one:.2f} s", f"{other:.2f} s", ratio, goal, ratio <= times)])
