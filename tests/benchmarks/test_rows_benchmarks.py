"""The exact difference of files without a change feed, against DuckDB, polars and plain reading.

Whole processes, one after the other in turns; times are those of the work, without imports.
"""

from __future__ import annotations

import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Measured, Row, mebibytes, middle, run_process
from tests.benchmarks.rewritten_files import rewritten_files

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

FILES, ROWS = 10, 1_000_000
TIMES = 3
MIB = 1 << 20

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

OURS = (
    PRELUDE
    + """
    import os
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np
    from tailerd.rows.difference import RowDifference, Side
    from tailerd.rows.exact import Inputs, RowMatcher, exact_difference

    files = {Side.REMOVED: before, Side.ADDED: after}
    schema = pq.read_schema(before[0])
    seed = int.from_bytes(os.urandom(16), "little")
    BATCH = 1 << 16

    def read(side, number, positions=None):
        # Not mapped: what is mapped counts as memory of the process.
        file = pq.ParquetFile(files[side][number])
        start = 0
        for batch in file.iter_batches(BATCH, use_threads=False):
            yield start, batch
            start += batch.num_rows

    def group_of(number, is_aligned):
        pairs = [(number, number)] if is_aligned else []
        group = Inputs(
            schema=schema, removed=[number], added=[number], aligned=pairs, read=read
        )
        return exact_difference(group, seed=seed, max_bytes=megabytes * 2**20 // 4)

    def file_by_file(is_aligned):
        with ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda n: group_of(n, is_aligned), range(len(before)))
            return [each for group in done for each in group]

    def all_at_once():
        matcher = RowMatcher(schema=schema, seed=seed)
        difference = RowDifference(max_bytes=megabytes * 2**20)
        inputs = [(side, n) for n in range(len(before)) for side in Side]
        found = []
        with ThreadPoolExecutor(2) as pool:
            while not difference.is_complete:
                work = lambda each: list(matcher.hash_rows(*each, read(*each)))
                # No more at a time than there are threads: what is hashed waits in memory.
                for at in range(0, len(inputs), 2):
                    for hashed in pool.map(work, inputs[at : at + 2]):
                        for rows in hashed:
                            rows.push_to(difference)
                found += difference.finish_pass()
        return found

    # What is loaded once a process is not counted.
    first = next(read(Side.REMOVED, 0))
    list(RowMatcher(schema=schema, seed=1).hash_rows(Side.REMOVED, 0, [first]))
    idle = resident()
    open("/proc/self/clear_refs", "w").write("5")
    start, start_cpu = time.perf_counter(), time.process_time()
    how = sys.argv[4]
    found = all_at_once() if how == "whole" else file_by_file(how == "aligned")
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    counts = [sum(len(each.positions) for each in found if each.side is side) for side in Side]
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds, "idle": idle}
    result |= {"deleted": counts[0], "inserted": counts[1]}
"""
)

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


def measured(added: str, memory: int, **programs: tuple[str, ...]) -> dict[str, Measured]:
    """Run programs in turns; return their medians by name."""
    folder = rewritten_files(FILES, ROWS)
    runs: dict[str, list[Measured]] = {name: [] for name in programs}
    for _ in range(TIMES):
        for name, (program, *arguments) in programs.items():
            run = run_process(program, folder, added, str(memory), *arguments)
            if "deleted" in run.result:
                assert (run.result["deleted"], run.result["inserted"]) == (FILES, FILES), name
            runs[name].append(run)
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


def test_one_row_of_each_of_ten_files_updated(report: Report) -> None:
    found = measured(
        "after",
        256,
        aligned=(OURS, "aligned"),
        hashed=(OURS, "hashed"),
        reading=(READING,),
        duckdb=(DUCKDB,),
        polars=(POLARS,),
    )
    aligned, hashed = found["aligned"], found["hashed"]
    report(
        [
            against("1 row of each of 10 x 1M rows, in place, DuckDB", aligned, found["duckdb"], 6),
            against("  the same, polars anti joins", aligned, found["polars"], 3),
            at_most("  the same, PyArrow reading both sides", aligned, found["reading"], 1.3),
            memory_of("  the same: memory above idle", aligned, 256),
            against("  as if in another order, DuckDB", hashed, found["duckdb"], 6),
            against("  the same, polars anti joins", hashed, found["polars"], 3),
            at_most("  the same, PyArrow reading both sides", hashed, found["reading"], 2.2),
            memory_of("  the same: memory above idle", hashed, 256),
        ]
    )


def test_all_rows_rewritten_in_another_order(report: Report) -> None:
    found = measured("shuffled", 512, whole=(OURS, "whole"), duckdb=(DUCKDB,), polars=(POLARS,))
    whole = found["whole"]
    report(
        [
            against("10M rows rewritten in another order, DuckDB", whole, found["duckdb"], 3),
            against("  the same, polars anti joins", whole, found["polars"], 1),
            memory_of("  the same: memory above idle with 512 MiB", whole, 600),
        ]
    )


def test_all_rows_rewritten_in_another_order_in_little_memory(report: Report) -> None:
    found = measured("shuffled", 256, whole=(OURS, "whole"), duckdb=(DUCKDB,))
    report(
        [
            against("10M rows in another order, in passes", found["whole"], found["duckdb"], 1.5),
            memory_of("  the same: memory above idle with 256 MiB", found["whole"], 256),
        ]
    )
