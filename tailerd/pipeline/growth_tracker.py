"""Measures the sizes of all tables, concurrently with the deliveries and at low priority.

It is driven by the pipelines' events, reads one table at a time, and at most once a second. Results
are reported as `TableMeasured`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace

from tailerd.changefeed.offset import Offset
from tailerd.clock import Clock, wait_at_most
from tailerd.errors import TailerdError
from tailerd.formats.statistics import Columns, TableStatistics
from tailerd.telemetry import Telemetry, events

POLL_SECONDS = 1.0
RETRY_SECONDS = 60.0


OpenStatistics = Callable[[str, str], Awaitable[TableStatistics | None]]
"""Takes a pipeline's name and its table's location; None if the format has no statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reported:
    """A pipeline's report of its table: its location, and its first and current offset."""

    location: str
    first: Offset | None = None
    next_up: Offset | None = None
    times_moved_back: int = 0


class GrowthTracker:
    """Measures the tables of all pipelines that were started.

    Args:
        open_statistics: Creates the statistics of the table at a location.
        telemetry, clock: As everywhere.
    """

    def __init__(
        self, open_statistics: OpenStatistics, *, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._open_statistics = open_statistics
        self._telemetry = telemetry
        self._clock = clock
        self._lock = threading.Lock()
        self._reported: dict[str, _Reported] = {}
        self._dirty: dict[str, None] = {}
        # Maintenance jobs that were done since the table was last measured.
        self._maintained: dict[str, set[str]] = {}
        # Names whose table was removed or replaced: `run` drops its statistics.
        self._gone: set[str] = set()
        # The fields below are used by `run` only.
        # Statistics, with the `times_moved_back` at which they were opened.
        self._tables: dict[str, tuple[TableStatistics, int]] = {}
        self._failed_at: dict[str, float] = {}
        self._wakeup = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle(self, event: events.Event) -> None:
        """Handle an event, from any thread."""
        match event:
            case events.PipelineStarted():
                with self._lock:
                    known = self._reported.get(event.table)
                    if known is not None and known.location != event.source:
                        self._gone.add(event.table)
                    self._reported[event.table] = _Reported(location=event.source)
            case events.TableRemoved():
                self._forget(event.table)
            case events.OffsetSaved() | events.OffsetChosen() if event.offset:
                self._learn(event.table, Offset.from_json(event.offset))
            case events.BacklogMeasured():
                self._learn(event.table, None)
            case events.LogMaintained(job=job, table=table):
                with self._lock:
                    if table in self._reported:
                        self._maintained.setdefault(table, set()).add(job)
                self._learn(table, None)
            case _:
                return

    def _forget(self, table: str) -> None:
        with self._lock:
            if self._reported.pop(table, None) is None:
                return
            self._dirty.pop(table, None)
            self._maintained.pop(table, None)
            self._gone.add(table)
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._wakeup.set)

    def _learn(self, table: str, offset: Offset | None) -> None:
        with self._lock:
            known = self._reported.get(table)
            if known is None:
                return
            if offset is not None:
                self._reported[table] = _after(known, offset)
            self._dirty[table] = None
        self._ring()

    async def run(self) -> None:
        """Measure until cancelled."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._dirty:
                self._wakeup.set()
        while True:
            await self._wait()
            for table, reported in self._take_dirty():
                began = self._clock.monotonic()
                await self._measure(table, reported)
                # At most half of the time is used here, however many tables there are.
                await self._clock.sleep(self._clock.monotonic() - began)
            await self._clock.sleep(POLL_SECONDS)

    async def _wait(self) -> None:
        now = self._clock.monotonic()
        dues = [due for each, _ in self._tables.values() if (due := each.due_in(now)) is not None]
        dues += [max(0.0, at + RETRY_SECONDS - now) for at in self._failed_at.values()]
        if not dues:
            await self._wakeup.wait()
        else:
            await wait_at_most(self._clock, self._wakeup.wait(), min(dues))
        self._wakeup.clear()

    def _take_dirty(self) -> list[tuple[str, _Reported]]:
        now = self._clock.monotonic()
        with self._lock:
            for name in self._gone:
                self._tables.pop(name, None)
                self._failed_at.pop(name, None)
            self._gone.clear()
            names = dict.fromkeys(self._dirty)
            self._dirty.clear()
            names.update(
                {n: None for n, (each, _) in self._tables.items() if each.due_in(now) == 0}
            )
            names.update(
                {n: None for n, at in self._failed_at.items() if at + RETRY_SECONDS <= now}
            )
            return [(name, self._reported[name]) for name in names if name in self._reported]

    def _emit(self, table: str, event: events.Event) -> None:
        """Emit an event of a table, unless the table was removed while it was measured."""
        if self._is_there(table):
            self._telemetry.emit(event)

    def _is_there(self, table: str) -> bool:
        with self._lock:
            return table in self._reported and table not in self._gone

    async def _measure(self, table: str, reported: _Reported) -> None:
        now = self._clock.monotonic()
        failed_at = self._failed_at.get(table)
        if reported.next_up is None or not self._is_there(table):
            return
        if failed_at is not None and now < failed_at + RETRY_SECONDS:
            return
        try:
            statistics = await self._advance(table, reported, reported.next_up)
        except TailerdError as error:
            self._tables.pop(table, None)
            self._failed_at[table] = now
            self._emit(
                table,
                events.GrowthUnavailable(table=table, error_code=error.code, error=str(error)),
            )
            return
        self._failed_at.pop(table, None)
        if statistics is not None:
            self._emit_size(table, statistics, reported.next_up)

    async def _advance(
        self, table: str, reported: _Reported, next_up: Offset
    ) -> TableStatistics | None:
        statistics = await self._open(table, reported, next_up)
        if statistics is None:
            return None
        with self._lock:
            done = self._maintained.pop(table, set())
        if done & statistics.measured_again_after:
            statistics.expire()
        is_more = await statistics.advance(self._clock.monotonic())
        self._emit_commits(table, statistics)
        if is_more:
            with self._lock:
                if table in self._reported:
                    self._dirty[table] = None
            self._wakeup.set()
        return statistics

    async def _open(
        self, table: str, reported: _Reported, next_up: Offset
    ) -> TableStatistics | None:
        """Return the table's statistics, opened again where they cannot continue.

        None if the table's format has no statistics.
        """
        known, times_moved_back = self._tables.get(table, (None, 0))
        if (
            known is not None
            and known.has_identity(next_up.table_id)
            and reported.times_moved_back == times_moved_back
            and known.reaches(next_up)
        ):
            return known
        statistics = await self._open_statistics(table, reported.location)
        if statistics is None:
            return None
        await statistics.open(self._clock.monotonic(), first=reported.first, next_up=next_up)
        self._tables[table] = statistics, reported.times_moved_back
        self._emit_schema(table, statistics.version, self._clock.now_ms(), statistics.columns())
        return statistics

    def _emit_commits(self, table: str, statistics: TableStatistics) -> None:
        for commit in statistics.take_commits():
            if commit.columns is not None:
                self._emit_schema(table, commit.version, commit.timestamp_ms, commit.columns)
            facts = {name: value for name, value in asdict(commit).items() if name != "columns"}
            self._emit(table, events.CommitObserved(table=table, **facts))

    def _emit_schema(self, table: str, version: int, at_ms: int, columns: Columns) -> None:
        self._emit(
            table,
            events.SchemaObserved(
                table=table, version=version, timestamp_ms=at_ms, columns=columns
            ),
        )

    def _emit_size(self, table: str, statistics: TableStatistics, next_up: Offset) -> None:
        pending = statistics.pending(next_up)
        self._emit(
            table,
            events.TableMeasured(
                table=table,
                **asdict(statistics.size()),
                pending_files=None if pending is None else pending.files,
                pending_bytes=None if pending is None else pending.bytes,
            ),
        )


def _after(reported: _Reported, offset: Offset) -> _Reported:
    before = reported.next_up
    is_other = before is None or before.table_id != offset.table_id
    is_back = before is not None and offset.is_before(before)
    return replace(
        reported,
        first=offset if is_other or is_back else reported.first,
        next_up=offset,
        times_moved_back=reported.times_moved_back + is_back,
    )
