"""One commit of a table of many fragments, and rows to Arrow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.fragment import LanceFragment

from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Version
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, milliseconds
from tests.formats.lance.following import EVERYTHING, opened
from tests.tables.lance_writer import LanceWriter

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

FRAGMENTS, TIMES = 10_000, 5
COMMIT_GOAL = 0.02
ROWS, READ_GOAL = 1_000_000, 0.5


def test_a_commit_of_ten_thousand_fragments_costs_little(tmp_path: Path, report: Report) -> None:
    location = str(tmp_path / "t")
    some = pa.table({"id": range(10), "name": ["n"] * 10})
    one = LanceFragment.create(location, some)
    operation = lance.LanceOperation.Overwrite(some.schema, [one] * FRAGMENTS)
    dataset = lance.LanceDataset.commit(location, operation)
    writer = LanceWriter(location)
    assert len(writer.dataset.get_fragments()) == FRAGMENTS

    async def ours() -> float:
        source = await opened(location)
        at = await source.initial_offset("latest")
        seconds = []
        for number in range(TIMES):
            writer.append([{"id": number, "name": "new"}])
            began = time.perf_counter()
            while (end := await source.latest_offset(at, EVERYTHING)) != at:
                async for group in source.plan(at, end):
                    for task in group.tasks:
                        assert sum(b.num_rows for b in source.read(task, BatchLimit())) > 0
                at = end
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    mine = asyncio.run(ours())
    head = writer.dataset.version
    began = time.perf_counter()
    sides = [
        {each.fragment_id: each.metadata for each in dataset.checkout_version(v).get_fragments()}
        for v in (head - 1, head)
    ]
    differing = [number for number, each in sides[1].items() if sides[0].get(number) != each]
    assert len(differing) == 1
    rows_found = writer.dataset.get_fragment(differing[0]).to_table()
    assert rows_found.num_rows == 1
    peer = time.perf_counter() - began
    ratio = mine / peer
    work = f"Lance: changes of a commit, {FRAGMENTS:,} fragments"
    report(
        [
            Row(work, milliseconds(mine), f"pylance's fragments: {peer:.1f} s", ratio,
                f"<= {COMMIT_GOAL}x", ratio <= COMMIT_GOAL)
        ]
    )  # fmt: skip


def test_created_rows_come_at_half_the_speed_of_a_plain_scan(
    tmp_path: Path, report: Report
) -> None:
    writer = LanceWriter(tmp_path / "t")
    ids = range(ROWS)
    writer.write(pa.table({"id": ids, "x": [n / 7 for n in ids], "name": [f"n{n}" for n in ids]}))

    async def ours() -> float:
        source = await opened(tmp_path / "t")
        begin = await source.offset_at(Version(1))
        end = begin.after_version(source)
        seconds = []
        for _ in range(TIMES):
            began = time.perf_counter()
            found = 0
            async for group in source.plan(begin, end):
                for task in group.tasks:
                    found += sum(batch.num_rows for batch in source.read(task, BatchLimit()))
            assert found == ROWS
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    mine = asyncio.run(ours())
    plain = []
    for _ in range(TIMES):
        began = time.perf_counter()
        assert writer.dataset.to_table().num_rows == ROWS
        plain.append(time.perf_counter() - began)
    ratio = min(plain) / mine
    speeds = [f"{ROWS / each / 1e6:.1f} M rows/s" for each in (mine, min(plain))]
    work = "Lance: 1 M created rows to Arrow"
    goal = f">= {READ_GOAL}x"
    report([Row(work, speeds[0], f"pylance scan: {speeds[1]}", ratio, goal, ratio >= READ_GOAL)])
