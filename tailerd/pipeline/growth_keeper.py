"""Keeps the sizes of all tables, beside the deliveries and never in their way.

It hears what the pipelines tell, looks at one table after the other, and at most once a second.
What it finds out is told as `TableMeasured`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from tailerd.changefeed.offset import Offset, Phase
from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.actions import Metadata
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.formats.delta.protocol.schema_text import column_texts
from tailerd.formats.delta.stats.table_growth import COMMITS_AT_ONCE, PendingWork, TableGrowth
from tailerd.telemetry import Telemetry, events

LOOK_SECONDS = 1.0
RETRY_SECONDS = 60.0
_KEYS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """What a pipeline told of its table: its place, and where delivery began and stands."""

    place: str
    table_id: str = ""
    first_version: int | None = None
    next_version: int | None = None
    snapshot_share: float = 0.0
    times_moved_back: int = 0


class GrowthKeeper:
    """Measures the tables of all pipelines that were started.

    Args:
        open_reader: Makes the log's reader of a table's place, `with_rows`.
        telemetry, clock: As everywhere.
    """

    def __init__(
        self, open_reader: Callable[[str], LogReader], *, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._open_reader = open_reader
        self._telemetry = telemetry
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}
        self._dirty: dict[str, None] = {}
        self._maintained: set[str] = set()
        # Names whose table is gone, or another: what `run` knows of them is to be dropped.
        self._gone: set[str] = set()
        # Below: of `run` alone.
        self._tables: dict[str, tuple[TableGrowth, int]] = {}
        self._failed_at: dict[str, float] = {}
        self._bell = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def handle(self, event: events.Event) -> None:
        """Hear an event, from any thread."""
        match event:
            case events.PipelineStarted():
                with self._lock:
                    known = self._heard.get(event.table)
                    if known is not None and known.place != event.source:
                        self._gone.add(event.table)
                    self._heard[event.table] = _Heard(place=event.source)
            case events.TableRemoved():
                self._forget(event.table)
            case events.OffsetSaved() | events.OffsetChosen() if event.offset:
                self._learn(event.table, Offset.from_json(event.offset))
            case events.BacklogMeasured():
                self._learn(event.table, None)
            case events.LogMaintained(job="checkpoint" | "cleanup", table=table):
                with self._lock:
                    if table in self._heard:
                        self._maintained.add(table)
                self._learn(table, None)
            case _:
                return

    def _forget(self, table: str) -> None:
        with self._lock:
            if self._heard.pop(table, None) is None:
                return
            self._dirty.pop(table, None)
            self._maintained.discard(table)
            self._gone.add(table)
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._bell.set)

    def _learn(self, table: str, offset: Offset | None) -> None:
        with self._lock:
            known = self._heard.get(table)
            if known is None:
                return
            if offset is not None:
                self._heard[table] = _after(known, offset)
            self._dirty[table] = None
        self._ring()

    async def run(self) -> None:
        """Measure until cancelled."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._dirty:
                self._bell.set()
        while True:
            await self._wait()
            for table, heard in self._take_dirty():
                began = self._clock.monotonic()
                await self._look_at(table, heard)
                # Half of the time belongs to others, however many tables there are.
                await self._clock.sleep(self._clock.monotonic() - began)
            await self._clock.sleep(LOOK_SECONDS)

    async def _wait(self) -> None:
        now = self._clock.monotonic()
        dues = [due for each, _ in self._tables.values() if (due := each.due_in(now)) is not None]
        dues += [max(0.0, at + RETRY_SECONDS - now) for at in self._failed_at.values()]
        if not dues:
            await self._bell.wait()
        else:
            ringing = asyncio.ensure_future(self._bell.wait())
            sleeping = asyncio.ensure_future(self._clock.sleep(min(dues)))
            try:
                await asyncio.wait({ringing, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ringing.cancel()
                sleeping.cancel()
        self._bell.clear()

    def _take_dirty(self) -> list[tuple[str, _Heard]]:
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
            return [(name, self._heard[name]) for name in names if name in self._heard]

    def _emit(self, table: str, event: events.Event) -> None:
        """Tell something of a table, unless it went while it was looked at."""
        if self._is_there(table):
            self._telemetry.emit(event)

    def _is_there(self, table: str) -> bool:
        with self._lock:
            return table in self._heard and table not in self._gone

    async def _look_at(self, table: str, heard: _Heard) -> None:
        now = self._clock.monotonic()
        failed_at = self._failed_at.get(table)
        if heard.next_version is None or not self._is_there(table):
            return
        if failed_at is not None and now < failed_at + RETRY_SECONDS:
            return
        try:
            growth = await self._advanced(table, heard, heard.next_version)
        except TailerdError as error:
            self._tables.pop(table, None)
            self._failed_at[table] = now
            self._emit(
                table,
                events.GrowthUnavailable(table=table, error_code=error.code, hint=str(error)),
            )
            return
        self._failed_at.pop(table, None)
        self._tell(table, growth, heard, heard.next_version)

    async def _advanced(self, table: str, heard: _Heard, next_version: int) -> TableGrowth:
        growth, times_moved_back = self._tables.get(table, (None, 0))
        now = self._clock.monotonic()
        if growth is not None and not (
            growth.is_of(heard.table_id)
            and heard.times_moved_back == times_moved_back
            and next_version <= growth.version + 1 + COMMITS_AT_ONCE
        ):
            growth = None
        if growth is None:
            growth = TableGrowth(self._open_reader(heard.place))
            # Where delivery began: an engine may have been faster than this, and what it delivered
            # meanwhile is to be seen too.
            first = next_version if heard.first_version is None else heard.first_version
            is_near = next_version - first <= COMMITS_AT_ONCE
            await growth.open(first if is_near else next_version, now)
            self._tables[table] = growth, heard.times_moved_back
            self._tell_schema(table, growth.version, self._clock.now_ms(), growth.metadata)
        with self._lock:
            if table in self._maintained:
                self._maintained.discard(table)
                growth.expire()
        is_more = await growth.advance(now)
        self._tell_commits(table, growth)
        if is_more:
            with self._lock:
                if table in self._heard:
                    self._dirty[table] = None
            self._bell.set()
        return growth

    def _tell_commits(self, table: str, growth: TableGrowth) -> None:
        for commit in growth.take_news():
            if commit.metadata is not None:
                self._tell_schema(table, commit.version, commit.timestamp_ms, commit.metadata)
            facts = {name: value for name, value in asdict(commit).items() if name != "metadata"}
            self._emit(table, events.CommitObserved(table=table, **facts))

    def _tell_schema(self, table: str, version: int, at_ms: int, metadata: Metadata) -> None:
        columns = column_texts(parse_schema(metadata.schema_text))
        self._emit(
            table,
            events.SchemaObserved(
                table=table, version=version, timestamp_ms=at_ms, columns=columns
            ),
        )

    def _tell(self, table: str, growth: TableGrowth, heard: _Heard, next_version: int) -> None:
        size = growth.size()
        pending = growth.pending(next_version)
        if pending is not None and heard.snapshot_share:
            pending = PendingWork(
                files=pending.files + round(size.files * heard.snapshot_share),
                bytes=pending.bytes + round(size.bytes * heard.snapshot_share),
            )
        self._emit(
            table,
            events.TableMeasured(
                table=table,
                **asdict(size),
                pending_files=None if pending is None else pending.files,
                pending_bytes=None if pending is None else pending.bytes,
            ),
        )


def _after(heard: _Heard, offset: Offset) -> _Heard:
    is_snapshot = offset.phase is Phase.SNAPSHOT
    # The commit after a snapshot is the first that is pending besides it.
    next_version = offset.version + is_snapshot
    is_back = heard.next_version is not None and next_version < heard.next_version
    is_begin = heard.first_version is None or is_back or heard.table_id != offset.table_id
    return replace(
        heard,
        table_id=offset.table_id,
        first_version=next_version if is_begin else heard.first_version,
        next_version=next_version,
        snapshot_share=1 - offset.position / _KEYS if is_snapshot else 0.0,
        times_moved_back=heard.times_moved_back + is_back,
    )
