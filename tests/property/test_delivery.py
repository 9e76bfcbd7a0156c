"""Offsets and deliveries as state machines: whatever crashes when, every row arrives once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tailerd.changefeed.delivery import DeliveryTracker
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import SinkError, StorageError, TableError
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.pipeline.collecting_sink import CollectingSink
from tests.pipeline.runs import Run
from tests.waiting import PATIENCE_SECONDS

POINTS = [
    "latest_offset",
    "plan",
    "read",
    "backlog",
    "commit",
    "resume",
    "before write",
    "in write",
    "after write",
    "before save",
    "after save",
]


class Killed(BaseException):
    """The process dies here: nothing after it runs."""


FAULTS: dict[str, Callable[[], BaseException]] = {
    "killed": Killed,
    "cancelled": asyncio.CancelledError,
    "retryable": lambda: StorageError("passes"),
    "sink": lambda: SinkError("passes"),
    "final": lambda: TableError("stays"),
}


class WatchedStore:
    """An offset store in memory that fails around saving and remembers every offset saved."""

    def __init__(self, fails: Callable[[str], None]) -> None:
        self.history: list[Offset] = []
        self._saved: SavedOffset | None = None
        self._fails = fails

    async def load(self, pipeline: str) -> SavedOffset | None:
        return self._saved

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        self._fails("before save")
        await asyncio.sleep(0)
        self._saved = saved
        self.history.append(saved.offset)
        self._fails("after save")


class PipelineMachine(RuleBasedStateMachine):
    """A table that grows, and a pipeline that runs over it again and again, with faults."""

    @initialize(
        start=st.sampled_from(["0", "snapshot"]),
        max_in_flight=st.integers(1, 3),
        pauses=st.lists(st.sampled_from([0, 1, 5, 30]), min_size=1, max_size=5),
        first=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    )
    def begin(self, start: str, max_in_flight: int, pauses: list[int], first: list[int]) -> None:
        self.faults: list[tuple[str, int, str]] = []
        self.table = FakeTable()
        self.next_id = 0
        self.commit(first)
        self.sink = CollectingSink(self.fails, max_in_flight=max_in_flight)
        self.sink.pauses = itertools.cycle(pauses)
        self.store = WatchedStore(self.fails)
        self.run_parts = Run(
            table=self.table,
            source=FakeSource(self.table, self.fails),
            sink=self.sink,
            offsets=self.store,
            start=start,
            max_rows=2,
            max_attempts=4,
        )

    def fails(self, here: str) -> None:
        for number, (point, left, kind) in enumerate(self.faults):
            if point == here:
                if left > 0:
                    self.faults[number] = (point, left - 1, kind)
                else:
                    del self.faults[number]
                    raise FAULTS[kind]()
                return

    @rule(files=st.lists(st.integers(0, 3), max_size=4))
    def commit(self, files: list[int]) -> None:
        ids = []
        for rows in files:
            ids.append(list(range(self.next_id, self.next_id + rows)))
            self.next_id += rows
        self.table.commit(*ids)

    @rule(
        faults=st.lists(
            st.tuples(st.sampled_from(POINTS), st.integers(0, 3), st.sampled_from(sorted(FAULTS))),
            min_size=1,
            max_size=3,
        ),
        max_files=st.integers(1, 4),
    )
    def run_with_faults(self, faults: list[tuple[str, int, str]], max_files: int) -> None:
        self.faults = list(faults)
        self.run_parts.max_files = max_files
        asyncio.run(self.run_once())
        self.faults = []

    @rule(max_files=st.integers(1, 4))
    def run_well(self, max_files: int) -> None:
        self.faults = []
        self.run_parts.max_files = max_files
        asyncio.run(self.run_once())
        assert self.sink.ids == self.table.ids()
        assert not self.store.history or self.store.history[-1].version == self.table.head + 1

    async def run_once(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                pipeline = await self.run_parts.once()
            if pipeline.error is None:
                assert self.sink.ids == self.table.ids(), "it said that it was done"
        except (Killed, asyncio.CancelledError):
            # Whatever was in memory is gone, the sink and the store remain.
            pass
        except BaseExceptionGroup as group:
            # The rest of the group is what was at work when the process died.
            if group.subgroup(Killed) is None:
                raise

    @invariant()
    def offsets_never_move_backward(self) -> None:
        if hasattr(self, "store"):
            orders = [offset.order for offset in self.store.history]
            assert orders == sorted(orders)

    @invariant()
    def what_a_saved_offset_covers_is_delivered(self) -> None:
        if hasattr(self, "store") and self.store.history:
            covered = self.store.history[-1]
            if covered.phase == "follow" and covered.position == 0:
                expected = self.table.ids(0, covered.version - 1)
                assert self.sink.ids[: len(expected)] == expected

    @invariant()
    def nothing_is_doubled(self) -> None:
        if hasattr(self, "sink"):
            assert len(self.sink.ids) == len(set(self.sink.ids))


class TrackerMachine(RuleBasedStateMachine):
    """The tracker against the naive rule: the longest delivered run from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = DeliveryTracker()
        self.begun: list[Offset] = []
        self.delivered: set[Offset] = set()
        self.safe = 0

    @rule(step=st.integers(1, 3))
    def begin(self, step: int) -> None:
        last = self.begun[-1].version if self.begun else 0
        end = Offset(table_id="t", version=Version(last + step))
        self.tracker.begin(end)
        self.begun.append(end)

    @precondition(lambda self: len(self.delivered) < len(self.begun))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        open_ends = [end for end in self.begun if end not in self.delivered]
        end = data.draw(st.sampled_from(open_ends))
        offset = self.tracker.acknowledge(end)
        self.delivered.add(end)
        run = 0
        while run < len(self.begun) and self.begun[run] in self.delivered:
            run += 1
        assert (offset is not None) is (run > self.safe)
        if offset is not None:
            assert offset == self.begun[run - 1]
        self.safe = run

    @invariant()
    def in_flight_is_what_no_offset_covers(self) -> None:
        assert self.tracker.in_flight == len(self.begun) - self.safe


TestPipeline = PipelineMachine.TestCase
TestPipeline.settings = settings(max_examples=300, stateful_step_count=15)
TestTracker = TrackerMachine.TestCase
