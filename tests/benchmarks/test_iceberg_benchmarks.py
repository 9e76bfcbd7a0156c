"""One commit of a table of many data files, and rows beside those of a Delta table."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Phase
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table
from tailerd.storage.table_location import locate_table
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, milliseconds
from tests.tables.iceberg_writer import IcebergWriter

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

FILES, TIMES = 10_000, 5
COMMIT_GOAL = 0.05
ROWS, READ_GOAL = 1_000_000, 0.8
EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)


def many_files(writer: IcebergWriter) -> None:
    """Add entries of data files that do not exist: planning does not open them."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    table = writer.table
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for number in range(FILES):
            update.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"{writer.location}/data/{number:08d}.parquet",
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=10,
                    file_size_in_bytes=1000,
                    column_sizes={1: 100, 2: 100},
                    value_counts={1: 10, 2: 10},
                    null_value_counts={1: 0, 2: 0},
                    nan_value_counts={},
                    lower_bounds={1: bytes(8)},
                    upper_bounds={1: bytes(8)},
                    split_offsets=[4],
                )
            )


def test_a_commit_among_ten_thousand_files_costs_little(tmp_path: Path, report: Report) -> None:
    writer = IcebergWriter(tmp_path / "t")
    many_files(writer)

    async def ours() -> float:
        source = await open_table(locate_table(str(writer.location)), OpenRequest())
        at = await source.initial_offset("latest")
        seconds = []
        for number in range(TIMES):
            writer.append([{"id": number, "name": "new"}])
            began = time.perf_counter()
            end = await source.latest_offset(at, EVERYTHING)
            planned = [task async for group in source.plan(at, end) for task in group.tasks]
            seconds.append(time.perf_counter() - began)
            assert len(planned) == 1
            at = end
        return min(seconds)

    mine = asyncio.run(ours())
    began = time.perf_counter()
    found: list[Any] = list(writer.table.scan().plan_files())
    peer = time.perf_counter() - began
    assert len(found) == FILES + TIMES
    ratio = mine / peer
    work = f"Iceberg: plan of a commit, {FILES:,} data files"
    report(
        [
            Row(work, milliseconds(mine), f"pyiceberg's plan of a scan: {peer:.2f} s", ratio,
                f"<= {COMMIT_GOAL}x", ratio <= COMMIT_GOAL)
        ]
    )  # fmt: skip


async def read_snapshot(location: Path, table_format: str) -> float:
    """Return the seconds to read all rows of the newest version."""
    source = await open_table(locate_table(str(location)), OpenRequest(), table_format)
    head = source.version_before((await source.initial_offset("latest")).version)
    start = await source.offset_at(head, Phase.SNAPSHOT)
    began = time.perf_counter()
    count = 0
    async for group in source.plan(start, start.after_version(source)):
        for batch in source.read_run(group.tasks, BatchLimit()):
            count += batch.num_rows
    assert count == ROWS
    return time.perf_counter() - began


def test_rows_come_as_fast_as_those_of_delta(tmp_path: Path, report: Report) -> None:
    ids = range(ROWS)
    rows = pa.table({"id": ids, "x": [n / 7 for n in ids], "name": [f"n{n}" for n in ids]})
    writer = IcebergWriter(tmp_path / "iceberg", schema=rows.schema)
    writer.table.append(rows)
    write_deltalake(str(tmp_path / "delta"), rows)
    seconds = {
        name: min(asyncio.run(read_snapshot(tmp_path / name, name)) for _ in range(TIMES))
        for name in ("iceberg", "delta")
    }
    ratio = seconds["delta"] / seconds["iceberg"]
    report(
        [
            Row(f"Iceberg: rows of a snapshot, {ROWS:,}", milliseconds(seconds["iceberg"]),
                f"Delta: {milliseconds(seconds['delta'])}", ratio,
                f">= {READ_GOAL}x", ratio >= READ_GOAL)
        ]
    )  # fmt: skip
