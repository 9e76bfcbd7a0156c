"""Upserts into and deletes from an array of a million cells, against reading both whole states."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiledb

from tailerd.changefeed.offset import Offset, Version
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, milliseconds
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import batches, opened

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

CELLS, UPSERTS, TIMES = 1_000_000, 1_000, 5
UPSERT_GOAL, DELETE_GOAL = 0.3, 0.8


def written(path: Path) -> None:
    """A million cells at 1000, a thousand upserts at 2000, 6,000 deletes at 3000."""
    schema = tiledb.ArraySchema(
        domain=tiledb.Domain(tiledb.Dim("id", domain=(0, 2 * CELLS), tile=10_000, dtype=np.int64)),
        sparse=True,
        attrs=[tiledb.Attr("v", dtype=np.float64), tiledb.Attr("n", dtype=np.int32)],
    )
    tiledb.Array.create(str(path), schema)

    def write(time_ms: int, ids: np.ndarray, factor: float) -> None:
        with tiledb.open(str(path), "w", timestamp=time_ms) as array:
            array[ids] = {"v": ids * factor, "n": (ids % 1000).astype(np.int32)}

    write(1000, np.arange(CELLS), 1.0)
    some = np.random.default_rng(7).choice(CELLS - 1, UPSERTS, replace=False) + 1
    write(2000, np.sort(some), 2.0)
    arrays.delete(path, 3000, "n < 6")


def both_states(path: Path, before: int, after: int) -> None:
    """What the peer does at least: it has not compared anything yet."""
    for time_ms in (before, after):
        with tiledb.open(str(path), timestamp=(0, time_ms)) as array:
            assert len(array.query(coords=True)[:]["id"]) > 0


def seconds(work: Callable[[], object]) -> float:
    found = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def test_steps_cost_less_than_both_whole_states(tmp_path: Path, report: Report) -> None:
    path = tmp_path / "array"
    written(path)

    async def step(version: int) -> int:
        source = await opened(path)
        start = await source.initial_offset(str(version))
        end = Offset(table_id=start.table_id, version=Version(version + 1))
        return sum(batch.num_rows for batch in await batches(source, start, end))

    rows = []
    for what, version, expected, goal in (
        (f"{UPSERTS:,} upserts", 2000, 2 * UPSERTS, UPSERT_GOAL),
        ("a delete of 6,000", 3000, 6_000, DELETE_GOAL),
    ):
        assert asyncio.run(step(version)) == expected
        peer = seconds(lambda v=version: both_states(path, v - 1, v))  # type: ignore[misc]
        ours = seconds(lambda v=version: asyncio.run(step(v)))  # type: ignore[misc]
        ratio = ours / peer
        rows.append(
            Row(
                work=f"TileDB: {what} of {CELLS:,} cells",
                ours=milliseconds(ours),
                peer=f"both states: {milliseconds(peer)}",
                ratio=ratio,
                goal=f"<= {goal}x",
                is_met=ratio <= goal,
            )
        )
    report(rows)
