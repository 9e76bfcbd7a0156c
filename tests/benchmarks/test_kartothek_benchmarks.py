"""One changed partition of a large dataset, against reading the dataset whole.

What ours does in the first is what a daemon does at each commit: look, read the metadata, keep the
state in the ledger, plan, read the rows that changed, forget the state before.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row
from tests.formats.kartothek.observing import Follower
from tests.tables.dataset_writer import DatasetWriter

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

PARTITIONS, ROWS = 10_000, 100
TIMES = 5
GOAL = 0.01


def test_one_partition_of_ten_thousand_costs_a_hundredth_of_the_dataset(
    tmp_path: Path, report: Report
) -> None:
    writer = DatasetWriter(tmp_path / "store")
    rows = [{"id": number, "name": f"n{number}"} for number in range(ROWS)]
    labels = writer.write(rows)
    content = writer.path(writer.partitions[labels[0]]["table"]).read_bytes()
    for number in range(1, PARTITIONS):
        key = f"ds/table/{number:032x}.parquet"
        writer.path(key).write_bytes(content)
        writer.partitions[f"{number:032x}"] = {"table": key}
    writer.store_metadata()

    began = time.perf_counter()
    keys = [files["table"] for files in writer.partitions.values()]
    total = sum(pq.read_table(writer.path(key), partitioning=None).num_rows for key in keys)
    peer = time.perf_counter() - began
    assert total == PARTITIONS * ROWS

    async def ours() -> float:
        follower = await Follower.open(writer.location, "latest", ledger=tmp_path / "ledger")
        seconds = []
        for _ in range(TIMES):
            [gone, *_] = writer.partitions
            writer.commit([{"id": -1, "name": "x"}, *rows[1:]], without=gone.__eq__)
            began = time.perf_counter()
            batches = await follower.step()
            seconds.append(time.perf_counter() - began)
            assert sum(batch.num_rows for batch in batches) == 2
        return statistics.median(seconds)

    mine = asyncio.run(ours())
    ratio = mine / peer
    report(
        [
            Row(
                work=f"Kartothek: 1 changed partition of {PARTITIONS:,}",
                ours=f"{mine * 1000:.0f} ms",
                peer=f"PyArrow reads all: {peer:.1f} s",
                ratio=ratio,
                goal=f"<= {GOAL}x",
                is_met=ratio <= GOAL,
            )
        ]
    )
