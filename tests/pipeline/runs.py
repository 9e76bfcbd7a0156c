"""Pipelines for tests: a table in memory, a sink in memory, and all events kept."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tailerd.backoff import RetryPolicy
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.saved_offset import OffsetStore
from tailerd.formats.base import ChangeSource
from tailerd.pipeline.delivery_loop import DeliveryParts, DeliverySpec
from tailerd.pipeline.pipeline import Pipeline
from tailerd.pipeline.policies import OnCorruptCommit, OnGap
from tailerd.sinks.base import Sink
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import Event
from tailerd.watchers.wakeups import Wakeup
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.doubles.memory_stores import MemoryCorruptCommitLog, MemoryOffsetStore
from tests.doubles.sim_clock import SimClock
from tests.pipeline.collecting_sink import CollectingSink


@dataclass
class Run:
    """What a test may look at, and the parts of the next pipeline."""

    table: FakeTable = field(default_factory=FakeTable)
    source: FakeSource | None = None
    sink: Sink = field(default_factory=CollectingSink)
    offsets: OffsetStore = field(default_factory=MemoryOffsetStore)
    wakeup: Wakeup = field(default_factory=Wakeup)
    clock: SimClock = field(default_factory=lambda: SimClock(is_automatic=True))
    events: list[Event] = field(default_factory=list)
    start: str = "0"
    changes: ChangeMode = ChangeMode.AUTO
    max_files: int = 1000
    max_rows: int = 1000
    is_once: bool = True
    max_attempts: int | None = None
    max_seconds: float | None = None
    on_gap: OnGap = OnGap.STOP
    on_corrupt_commit: OnCorruptCommit = OnCorruptCommit.STOP
    roll_seconds: float | None = None
    corrupt_commits: MemoryCorruptCommitLog = field(default_factory=MemoryCorruptCommitLog)

    def pipeline(self) -> Pipeline:
        return Pipeline(
            DeliverySpec(
                table="orders",
                sink="collect",
                start=self.start,
                changes=self.changes,
                read_limit=ReadLimit(max_files=self.max_files),
                batch_limit=BatchLimit(max_rows=self.max_rows),
                is_once=self.is_once,
                on_gap=self.on_gap,
                on_corrupt_commit=self.on_corrupt_commit,
                roll_seconds=self.roll_seconds,
            ),
            DeliveryParts(
                sink=self.sink,
                wakeup=self.wakeup,
                telemetry=Telemetry([self.events.append]),
                clock=self.clock,
                corrupt_commits=self.corrupt_commits,
            ),
            source_location="fake",
            open_source=self.open,
            offsets=self.offsets,
            retries=RetryPolicy(
                max_attempts=self.max_attempts,
                max_seconds=self.max_seconds,
                jitter=random.Random(1),
            ),
        )

    async def open(self) -> ChangeSource:
        return self.source or FakeSource(self.table)

    async def once(self) -> Pipeline:
        pipeline = self.pipeline()
        await pipeline.run()
        return pipeline

    def reported(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]
