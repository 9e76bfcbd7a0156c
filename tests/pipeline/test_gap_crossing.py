"""Gaps met while something else is going on: deliveries under way, a stop, a first snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import LogCleanedUpError, MissingVersionError, SinkError
from tailerd.pipeline.policies import OnGap
from tailerd.telemetry import events
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.pipeline.collecting_sink import CollectingSink
from tests.pipeline.runs import Run
from tests.pipeline.test_policies import commit_rows, failing
from tests.waiting import PATIENCE_SECONDS, comes


def make_run(sink: CollectingSink, on_gap: OnGap, **options: object) -> Run:
    table = commit_rows(FakeTable(), (0,), (1,), (2,), (3,), (4,))
    return Run(table=table, sink=sink, on_gap=on_gap, max_files=1, **options)  # type: ignore[arg-type]


class VanishingSource(FakeSource):
    """One commit goes while it is planned or read, once `is_time` is set."""

    def __init__(self, table: FakeTable, version: Version, *, where: str = "plan") -> None:
        super().__init__(table)
        self.is_time = asyncio.Event()
        self._version = version
        self._where = where

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        if self._where == "latest_offset" and start.version == self._version:
            await self._vanish()
        return await super().latest_offset(start, limit)

    async def plan(self, start: Offset, end: Offset) -> AsyncIterator[TaskGroup]:
        if self._where == "plan" and start == Offset(table_id="table-1", version=self._version):
            await self._vanish()
        async for group in super().plan(start, end):
            yield group

    async def _vanish(self) -> None:
        await self.is_time.wait()
        self._table.first = Version(self._version + 1)
        raise MissingVersionError(f"Version {self._version} vanished.")


async def test_what_was_delivered_behind_a_gap_and_not_covered_is_taken_back() -> None:
    sink = CollectingSink(max_in_flight=3)
    run = make_run(sink, OnGap.LATEST)
    run.source = source = VanishingSource(run.table, Version(2))
    task = asyncio.create_task(run.once())
    await comes(lambda: sink.ids == [0, 1, 3, 4])
    source.is_time.set()
    assert (await task).error is None
    (gap,) = sink.gaps
    assert (gap.start.version, gap.end.version) == (2, 5)
    assert sink.ids == [0, 1], "what a gap says is missing is missing"


@pytest.mark.parametrize("where", ["plan", "latest_offset"])
@pytest.mark.parametrize("on_gap", [OnGap.STOP, OnGap.LATEST])
async def test_what_lies_before_a_gap_is_delivered_before_anything_is_decided(
    on_gap: OnGap, where: str
) -> None:
    sink = CollectingSink(max_in_flight=3)
    sink.gate.clear()
    run = make_run(sink, on_gap)
    run.source = source = VanishingSource(run.table, Version(2), where=where)
    task = asyncio.create_task(run.once())
    await comes(lambda: sink.in_flight == (2 if where == "latest_offset" else 3))
    await asyncio.sleep(0.02)
    source.is_time.set()
    await asyncio.sleep(0.02)
    sink.gate.set()
    pipeline = await task
    assert (pipeline.error is not None) is (on_gap is OnGap.STOP)
    assert sink.ids == [0, 1]
    assert [gap.start.version for gap in sink.gaps] == ([] if on_gap is OnGap.STOP else [2])


async def test_a_last_delivery_that_fails_is_tried_again() -> None:
    sink = CollectingSink(failing("after write", SinkError("full"), 1), max_in_flight=3)
    sink.gate.clear()
    run = make_run(sink, OnGap.STOP)
    run.table = commit_rows(FakeTable(), (0,))
    task = asyncio.create_task(run.once())
    await comes(lambda: sink.in_flight == 1)
    await asyncio.sleep(0.02)
    sink.gate.set()
    assert (await task).error is None
    assert len(run.reported(events.RetryScheduled)) == 1
    assert sink.ids == [0]


@pytest.mark.parametrize(("on_gap", "is_failed"), [(OnGap.STOP, True), (OnGap.SNAPSHOT, False)])
async def test_a_gap_met_while_stopping_is_left_to_the_next_run_where_policy_crosses_it(
    on_gap: OnGap, is_failed: bool
) -> None:
    sink = CollectingSink()
    run = make_run(sink, on_gap, is_once=False)
    run.source = source = VanishingSource(run.table, Version(2))
    pipeline = run.pipeline()
    task = asyncio.create_task(pipeline.run())
    await comes(lambda: sink.ids == [0, 1])
    await asyncio.sleep(0.02)
    pipeline.stop()
    source.is_time.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task
    assert (pipeline.error is not None) is is_failed
    assert len(run.reported(events.PipelineFailed)) == is_failed
    assert len(run.reported(events.PipelineStopped)) == (not is_failed)
    assert not run.reported(events.GapMet)
    run.is_once, run.source = True, None
    again = await run.once()
    assert (again.error is not None) is is_failed
    assert len(sink.gaps) == (not is_failed)


async def test_a_log_cleaned_up_while_the_first_snapshot_is_listed_is_looked_at_anew() -> None:
    sink = CollectingSink()
    run = make_run(sink, OnGap.STOP, start="snapshot")
    cleaned = failing("initial_offset", LogCleanedUpError("gone"), 2)
    run.source = FakeSource(run.table, cleaned)
    assert (await run.once()).error is None
    assert sink.ids == [0, 1, 2, 3, 4]
    assert len(run.reported(events.RetryScheduled)) == 2


async def test_a_log_cleaned_up_while_it_is_read_is_no_gap_before_it_was_looked_at_again() -> None:
    sink = CollectingSink()
    run = make_run(sink, OnGap.LATEST)
    run.source = FakeSource(run.table, failing("plan", LogCleanedUpError("gone"), 1))
    assert (await run.once()).error is None
    assert sink.ids == [0, 1, 2, 3, 4]
    assert sink.gaps == []
