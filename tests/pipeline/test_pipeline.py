"""One table's pipeline over a table and a sink in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import SinkError, SinkTooSlowError, StorageError, TableError, TailerdError
from tailerd.pipeline.change_runs import RUN_FILES
from tailerd.pipeline.change_stream import RUNS_AHEAD
from tailerd.sinks.base import Delivery
from tailerd.telemetry import events
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.doubles.sim_clock import SimClock
from tests.pipeline.collecting_sink import CollectingSink
from tests.pipeline.runs import Run
from tests.waiting import PATIENCE_SECONDS, comes


def make_table(*commits: int) -> FakeTable:
    """A table whose commits have this many rows each, one file of at most 3 rows each."""
    table, next_id = FakeTable(), 0
    for rows in commits:
        ids = list(range(next_id, next_id + rows))
        table.commit(*(ids[i : i + 3] for i in range(0, rows, 3)))
        next_id += rows
    return table


def failing(where: str, *errors: TailerdError | Exception) -> Callable[[str], None]:
    """Raise the errors one after the other whenever `where` is reached, then no more."""
    left = list(errors)

    def fails(here: str) -> None:
        if here == where and left:
            raise left.pop(0)

    return fails


@pytest.mark.parametrize("max_files", [1, 2, 1000])
@pytest.mark.parametrize("start", ["0", "snapshot", "2"])
async def test_every_row_arrives_once_and_in_order(start: str, max_files: int) -> None:
    run = Run(table=make_table(5, 0, 7, 1), start=start, max_files=max_files, max_rows=2)
    sink = CollectingSink()
    run.sink = sink
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == run.table.ids(2 if start == "2" else 0)
    assert sink.is_closed


async def test_a_second_run_delivers_only_what_is_new() -> None:
    run = Run(table=make_table(3, 4), start="snapshot")
    sink = CollectingSink()
    run.sink = sink
    await run.once()
    first = sink.ids
    run.table.commit([100, 101])
    await run.once()
    assert sink.ids == [*first, 100, 101]


async def test_the_first_offset_is_saved_before_the_first_row_is_delivered() -> None:
    run = Run(table=make_table(3), start="snapshot")
    run.sink = CollectingSink(failing("before write", TableError("no")))
    await run.once()
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert (saved.offset.version, saved.offset.phase) == (0, Phase.SNAPSHOT)


async def test_a_crash_in_the_first_snapshot_goes_on_with_the_same_snapshot() -> None:
    run = Run(table=make_table(3), start="snapshot")
    sink = CollectingSink(failing("after write", TableError("crash")))
    run.sink = sink
    await run.once()
    run.table.commit([50])
    await run.once()
    assert sink.ids == [0, 1, 2, 50]


async def test_once_ends_at_the_head_of_its_beginning_although_commits_go_on() -> None:
    run = Run(table=make_table(2, 2), max_files=1)
    sink = CollectingSink()
    run.sink = sink

    def commits_more(here: str) -> None:
        if here == "latest_offset":
            run.table.commit([1000 + run.table.head])

    run.source = FakeSource(run.table, commits_more)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await run.once()
    assert sink.ids == [0, 1, 2, 3]


async def test_a_hint_wakes_a_waiting_pipeline_and_stop_ends_it() -> None:
    run = Run(table=make_table(1), is_once=False)
    sink = CollectingSink()
    run.sink = sink
    pipeline = run.pipeline()
    task = asyncio.create_task(pipeline.run())
    idle = (0, 0)
    await comes(
        lambda: any(
            (e.versions, e.head_version) == idle
            for e in run.events
            if isinstance(e, events.BacklogMeasured)
        )
    )
    run.table.commit([1])
    await asyncio.sleep(0.02)
    assert sink.ids == [0]
    run.wakeup.set()
    await comes(lambda: sink.ids == [0, 1])
    pipeline.stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task
    assert run.reported(events.PipelineStopped)


async def test_the_offset_is_saved_only_after_the_sink_acknowledged() -> None:
    run = Run(table=make_table(2))
    sink = CollectingSink()
    sink.gate.clear()
    run.sink = sink
    task = asyncio.create_task(run.once())
    await comes(lambda: sink.in_flight == 1)
    await asyncio.sleep(0.02)
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.version == 0
    sink.gate.set()
    await task
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.version == 1


async def test_stop_lets_what_is_in_flight_finish() -> None:
    run = Run(table=make_table(2, 2), max_files=1, is_once=False)
    sink = CollectingSink()
    sink.gate.clear()
    run.sink = sink
    pipeline = run.pipeline()
    task = asyncio.create_task(pipeline.run())
    await comes(lambda: sink.in_flight == 1)
    pipeline.stop()
    await asyncio.sleep(0.02)
    assert not task.done()
    sink.gate.set()
    await task
    assert sink.ids == [0, 1]
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.version == 1


async def test_a_cancelled_delivery_is_delivered_again_and_leaves_no_open_read() -> None:
    run = Run(table=make_table(2, 2), is_once=False)
    sink = CollectingSink()
    sink.gate.clear()
    run.sink = sink
    run.source = FakeSource(run.table)
    task = asyncio.create_task(run.pipeline().run())
    await comes(lambda: sink.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.source.open_reads == 0
    assert sink.ids == []
    sink.gate.set()
    run.is_once = True
    await run.once()
    assert sink.ids == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "where", ["initial_offset", "latest_offset", "plan", "read", "backlog", "commit"]
)
async def test_a_retryable_error_of_the_source_is_visible_and_survived(where: str) -> None:
    run = Run(table=make_table(4, 4), max_rows=1, max_files=1)
    sink = CollectingSink()
    run.sink = sink
    errors = [StorageError("the disk hiccups"), StorageError("again")]
    run.source = FakeSource(run.table, failing(where, *errors))
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == run.table.ids()
    retries = run.reported(events.RetryScheduled)
    assert [r.error_code for r in retries if isinstance(r, events.RetryScheduled)] == [
        "storage",
        "storage",
    ]


@pytest.mark.parametrize("where", ["resume", "before write", "after write"])
@pytest.mark.parametrize("max_in_flight", [1, 4])
async def test_a_retryable_error_of_the_sink_loses_and_doubles_nothing(
    where: str, max_in_flight: int
) -> None:
    run = Run(table=make_table(4, 4, 0, 5), max_files=1)
    sink = CollectingSink(failing(where, SinkError("full")), max_in_flight=max_in_flight)
    run.sink = sink
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == run.table.ids()


class SlowSink(CollectingSink):
    """Takes a few rows in one piece, and no more."""

    async def write(self, delivery: Delivery) -> int:
        rows = await super().write(delivery)
        if rows > 4:
            del self.kept[delivery.start]
            raise SinkTooSlowError("Too much at once.")
        return rows


class UnreachableSink(CollectingSink):
    """Can be written only after five attempts; each finds another commit in the table."""

    def __init__(self, table: FakeTable) -> None:
        super().__init__()
        self.table, self.attempts = table, 0

    async def resume(self, offset: Offset) -> None:
        self.attempts += 1
        if 1 < self.attempts < 6:
            self.table.commit([self.table.head + 1])
            raise SinkError("No broker answers.")
        await super().resume(offset)

    async def write(self, delivery: Delivery) -> int:
        if self.attempts == 1:
            raise SinkError("The broker is gone.")
        return await super().write(delivery)


async def test_the_lag_is_measured_while_a_sink_cannot_be_reached() -> None:
    run = Run(table=make_table(1), is_once=False)
    run.sink = sink = UnreachableSink(run.table)
    pipeline = run.pipeline()
    task = asyncio.create_task(pipeline.run())
    await comes(lambda: len(sink.ids) == 5)
    pipeline.stop()
    await task
    idle = [e.versions for e in run.events if isinstance(e, events.BacklogMeasured) and e.is_idle]
    assert idle == [1, 2, 3, 4, 5]


class PinningSink(CollectingSink):
    """Has files after its first write, which was too slow; another end would repeat their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[Offset, Offset]] = []
        self.has_failed = False

    async def pinned_end(self, start: Offset) -> Offset | None:
        return next((end for begun, end in self.ranges if begun == start), None)

    async def write(self, delivery: Delivery) -> int:
        self.ranges.append((delivery.start, delivery.end))
        rows = await super().write(delivery)
        if rows > 4 and not self.has_failed:
            self.has_failed = True
            raise SinkTooSlowError("Too much at once.")
        return rows


async def test_a_delivery_that_was_begun_is_repeated_to_its_end_although_limits_are_lower() -> None:
    run = Run(table=make_table(4, 40, 5), max_files=16)
    sink = PinningSink()
    run.sink = sink
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == run.table.ids()
    [repeated] = [each for each, count in Counter(sink.ranges).items() if count > 1]
    assert sink.ranges.count(repeated) == 2
    assert len({start for start, _ in sink.ranges}) == len(sink.ranges) - 1


async def test_what_is_too_much_for_a_sink_is_delivered_in_smaller_pieces() -> None:
    run = Run(table=make_table(4, 40, 5), max_files=16)
    sink = SlowSink()
    run.sink = sink
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == run.table.ids()
    # 16, 8, 4, 2 files were too many; one of three rows is not. It stays at that.
    assert len(run.reported(events.RetryScheduled)) == 4


async def test_waits_between_retries_grow_and_begin_anew_after_progress() -> None:
    run = Run(table=make_table(3))
    errors = [StorageError("x") for _ in range(4)]
    run.source = FakeSource(run.table, failing("latest_offset", *errors))
    await run.once()
    waits = [e.wait_seconds for e in run.events if isinstance(e, events.RetryScheduled)]
    assert waits == sorted(waits)
    assert len(waits) == 4


async def test_a_bounded_number_of_attempts_ends_in_failure() -> None:
    run = Run(table=make_table(3), max_attempts=3)
    errors = [StorageError("x") for _ in range(9)]
    run.source = FakeSource(run.table, failing("latest_offset", *errors))
    pipeline = await run.once()
    assert isinstance(pipeline.error, StorageError)
    assert len(run.reported(events.RetryScheduled)) == 2


async def test_time_without_progress_ends_in_failure_and_begins_again_with_progress() -> None:
    run = Run(table=make_table(1, 1, 1), max_files=1, max_seconds=60)
    run.source = FakeSource(run.table, failing("read", *(SinkError("x") for _ in range(20))))
    began = run.clock.monotonic()
    pipeline = await run.once()
    assert isinstance(pipeline.error, SinkError)
    assert str(pipeline.error) == "x No attempt succeeded in 60 s."
    assert run.clock.monotonic() - began == pytest.approx(60, abs=0.1)
    left = iter("xxxxx.xxxxx.xxxxx.")

    def fails(here: str) -> None:
        if here == "before write" and next(left) == "x":
            raise SinkError("x")

    # Five waits take 3 to 6.2 seconds.
    sink = CollectingSink(fails)
    run = Run(table=make_table(1, 1, 1), max_files=1, max_seconds=7, sink=sink)
    began = run.clock.monotonic()
    assert (await run.once()).error is None
    assert sink.ids == [0, 1, 2]
    assert run.clock.monotonic() - began > 7


async def test_without_time_the_first_failure_is_the_last() -> None:
    run = Run(table=make_table(1), max_seconds=0)
    run.source = FakeSource(run.table, failing("read", StorageError("x")))
    assert (await run.once()).error is not None
    assert not run.reported(events.RetryScheduled)


async def test_an_error_that_stays_stops_the_pipeline_in_a_named_state() -> None:
    run = Run(table=make_table(3))
    run.source = FakeSource(run.table, failing("plan", TableError("broken for good")))
    pipeline = await run.once()
    assert isinstance(pipeline.error, TableError)
    (failed,) = run.reported(events.PipelineFailed)
    assert isinstance(failed, events.PipelineFailed)
    assert (failed.error_code, failed.error) == ("table", "broken for good")


async def test_an_unforeseen_exception_fails_this_pipeline_as_a_bug() -> None:
    run = Run(table=make_table(3))
    run.source = FakeSource(run.table, failing("read", ZeroDivisionError("oops")))
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "bug"
    assert "ZeroDivisionError: oops" in str(pipeline.error)


async def test_a_sink_that_acknowledges_too_few_rows_is_found_out() -> None:
    class ForgetfulSink(CollectingSink):
        async def write(self, delivery: object) -> int:
            return 0

    run = Run(table=make_table(3), sink=ForgetfulSink())
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "bug"
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.version == 0


async def test_a_table_made_anew_is_noticed() -> None:
    run = Run(table=make_table(3))
    await run.once()
    run.table = FakeTable(table_id="table-2", commits=[[[9]], [[10]]])
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "table_recreated"


async def test_a_changed_change_mode_is_refused_and_the_reset_is_named() -> None:
    run = Run(table=make_table(3))
    await run.once()
    run.changes = ChangeMode.FILES
    pipeline = await run.once()
    assert pipeline.error is not None
    assert "tailerd offsets reset orders" in str(pipeline.error)


async def test_deliveries_run_side_by_side_up_to_what_the_sink_allows() -> None:
    run = Run(table=make_table(*[1] * 9), max_files=1)
    sink = CollectingSink(max_in_flight=3)
    sink.gate.clear()
    run.sink = sink
    task = asyncio.create_task(run.once())
    await comes(lambda: sink.in_flight == 3)
    await asyncio.sleep(0.02)
    sink.gate.set()
    await task
    assert sink.most_in_flight == 3
    assert sink.ids == run.table.ids()


async def test_the_backlog_is_told_before_a_delivery_and_is_zero_when_idle() -> None:
    run = Run(table=make_table(1, 1, 1))
    await run.once()
    backlogs = [e for e in run.events if isinstance(e, events.BacklogMeasured)]
    assert (backlogs[0].versions, backlogs[0].head_version) == (3, 2)
    run.events.clear()
    await run.once()
    (idle,) = [e for e in run.events if isinstance(e, events.BacklogMeasured)]
    assert (idle.versions, idle.head_version, idle.oldest_timestamp_ms) == (0, 2, None)


async def test_rows_are_counted_by_change_type_after_the_acknowledgement() -> None:
    run = Run(table=make_table(3, 0, 4))
    await run.once()
    delivered = [e for e in run.events if isinstance(e, events.DeliveryAcknowledged)]
    assert [(d.start_version, d.end_version, d.rows) for d in delivered] == [(0, 2, {"insert": 7})]
    assert delivered[0].bytes > 0


async def test_the_source_hears_every_saved_offset_in_order() -> None:
    run = Run(table=make_table(3, 3, 3), max_files=1)
    run.source = FakeSource(run.table)
    await run.once()
    orders = [offset.order for offset in run.source.committed]
    assert orders == sorted(orders)
    assert run.source.committed[-1].version == 3


async def test_reading_ahead_is_bounded_while_the_sink_is_slow() -> None:
    run = Run(table=make_table(*[3] * 200))

    class SlowSink(CollectingSink):
        async def write(self, delivery: object) -> int:
            self.in_flight += 1
            batches = delivery.batches  # type: ignore[attr-defined]
            await anext(batches)
            await self.gate.wait()
            return 1 + len([batch async for batch in batches])

    sink = SlowSink()
    sink.gate.clear()
    run.sink, run.source = sink, FakeSource(run.table)
    task = asyncio.create_task(run.once())
    await comes(lambda: sink.in_flight == 1)
    await asyncio.sleep(0.05)
    assert run.source.reads_begun <= (RUNS_AHEAD + 1) * RUN_FILES
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_commits_are_gathered_until_the_oldest_is_old_or_they_are_many() -> None:
    run = Run(table=make_table(1), start="0", is_once=False, max_files=3, roll_seconds=60)
    run.clock = SimClock()
    sink = CollectingSink()
    run.sink = sink
    pipeline = run.pipeline()
    running = asyncio.create_task(pipeline.run())
    try:
        await pause()
        run.table.commit([10])
        run.wakeup.set()
        await pause()
        assert sink.ids == []
        assert run.reported(events.BacklogMeasured)
        await run.clock.advance(59)
        await pause()
        assert sink.ids == []
        await run.clock.advance(2)
        await comes(lambda: sink.ids == [0, 10])
        assert len(run.reported(events.DeliveryAcknowledged)) == 1
        # Four files are more than a delivery holds: three go at once, the last one waits.
        for number in range(20, 24):
            run.table.commit([number])
        run.wakeup.set()
        await comes(lambda: sink.ids == [0, 10, 20, 21, 22])
        await pause()
        assert sink.ids == [0, 10, 20, 21, 22]
    finally:
        pipeline.stop()
        await running
    run.roll_seconds = None
    run.is_once = True
    await run.once()
    assert sink.ids == run.table.ids(0)


async def pause() -> None:
    """Let a pipeline do all that it can without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)
