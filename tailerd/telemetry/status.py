"""The status of every pipeline, built from events: what `/status` and `/readyz` show."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tailerd.clock import Clock
from tailerd.pipeline_names import table_of
from tailerd.telemetry import events
from tailerd.telemetry.problems import ProblemBoard
from tailerd.telemetry.rates import MinuteRate
from tailerd.telemetry.table_gauges import TableGauges, size_json

_MEASURE = "measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The status of one pipeline, from its events.

    Attributes:
        state: starting, running, retrying, failed or stopped.
        guarantee: Of its sink: exactly-once, at-least-once.
        version: Version its offset points at; None before it is known.
        delivered: The newest version that is delivered completely; None if none is, or not known.
        error_ms: Wall-clock time of the last error.
        failing_since_ms: Wall-clock time of the first error since rows were delivered, or the
            pipeline was up to date; None if none is.
        format: Name of its table's format; empty before it was opened.
        capabilities: Capabilities of that format.
        offset: The offset's JSON text, empty if it is not known.
        oldest_timestamp_ms: Commit time of the oldest undelivered version; None: all delivered.
        rows: Delivered rows by `_change_type`, since the process started.
        last_error: The last error's text; kept when the pipeline recovers.
        attempt: Failed attempts in a row.
        paused_by: Who paused it, while it is paused; empty if it is not known.
        next_retry_ms: Wall-clock time of the next attempt while it waits for one.
        gaps: Times the offset was moved over a gap; `last_gap` describes the last one.
        skipped_commits: Damaged commits left out since the process started.
        dead_letters: Records set aside since the process started, by topic.
        activity: The current step while it starts: waiting, opening, reading.
    """

    table: str
    engine: str
    source: str = ""
    sink: str = ""
    guarantee: str = ""
    format: str = ""
    capabilities: dict[str, object] = field(default_factory=dict)
    offset: str = ""
    state: str = "starting"
    is_ready: bool = False
    version: int | None = None
    delivered: int | None = None
    head_version: int | None = None
    lag_versions: int | None = None
    oldest_timestamp_ms: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    last_error: str = ""
    last_error_code: str = ""
    error_ms: int | None = None
    failing_since_ms: int | None = None
    attempt: int = 0
    paused_by: str = ""
    next_retry_ms: int | None = None
    gaps: int = 0
    last_gap: str = ""
    skipped_commits: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    activity: str = "waiting"

    def lag_seconds(self, now_ms: int) -> float | None:
        """Return the age of the oldest undelivered version; None if it is not known."""
        if not self.is_ready:
            return None
        oldest = self.oldest_timestamp_ms
        return 0.0 if oldest is None else max(0.0, (now_ms - oldest) / 1000)

    def _error_json(self) -> dict[str, object] | None:
        """Return the last error; `is_current` says whether it still blocks the pipeline."""
        if not self.last_error:
            return None
        return {
            "code": self.last_error_code,
            "message": self.last_error,
            "at_ms": self.error_ms,
            "is_current": self.state in ("retrying", "failed"),
        }

    def to_json(self, now_ms: int) -> dict[str, object]:
        """Return what `/status` shows of this table."""
        return {
            "table": self.table,
            "state": self.state,
            "engine": self.engine,
            "source": self.source,
            "format": self.format or None,
            "capabilities": self.capabilities or None,
            "sink": self.sink,
            "guarantee": self.guarantee or None,
            "offset": json.loads(self.offset) if self.offset else None,
            "offset_version": self.version,
            "delivered_version": self.delivered,
            "head_version": self.head_version,
            "lag_versions": self.lag_versions,
            "lag_seconds": self.lag_seconds(now_ms),
            "rows_delivered": self.rows,
            "last_error": self._error_json(),
            "failing_since_ms": self.failing_since_ms,
            "attempt": self.attempt,
            "next_retry_ms": self.next_retry_ms,
            "paused_by": (self.paused_by or None) if self.state == "paused" else None,
            "gaps": self.gaps,
            "last_gap": self.last_gap or None,
            "skipped_commits": self.skipped_commits,
            "dead_letters": self.dead_letters,
            "activity": self.activity if self.state == "starting" else None,
        }


class StatusBoard:
    """Builds one `TableStatus` for each table from events. Thread-safe.

    Attributes:
        gauges: Figures of tables, which metrics show too.
        problems: Problems that concern no single table.
    """

    def __init__(self, tables: Iterable[tuple[str, str]], clock: Clock) -> None:
        """Begin with these (name, engine) pairs: a table without events is not ready."""
        self._clock = clock
        self._lock = threading.Lock()
        self._tables = {name: TableStatus(table=name, engine=engine) for name, engine in tables}
        self.gauges = TableGauges(clock)
        self._rates: dict[str, dict[str, MinuteRate]] = {}
        self._maintenance = MaintenanceBoard(clock)
        self.problems = ProblemBoard(clock)

    def expect(self, tables: Iterable[tuple[str, str]]) -> None:
        """Add (name, engine) pairs of tables that have no events yet."""
        with self._lock:
            for name, engine in tables:
                self._tables.setdefault(name, TableStatus(table=name, engine=engine))

    @property
    def tables(self) -> tuple[TableStatus, ...]:
        """All pipelines, in the order of the configuration."""
        with self._lock:
            return tuple(self._tables.values())

    @property
    def is_ready(self) -> bool:
        """Return whether every pipeline has polled its log or is paused, and none has failed."""
        return not any(self.unready())

    def unready(self) -> Iterator[tuple[str, str]]:
        """Yield each pipeline, and each pattern of tables, that is not ready, and why."""
        for problem in self.problems.problems:
            if problem.is_blocking:
                yield f"{problem.part} {problem.name}".strip(), problem.error_code
        for table in self.tables:
            if table.state == "failed":
                yield table.table, "failed"
            elif not table.is_ready and table.state != "paused":
                yield table.table, "not yet ready"

    def to_json(self) -> dict[str, object]:
        """Return the whole of `/status`."""
        now_ms = self._clock.now_ms()
        return {
            "ready": self.is_ready,
            "problems": self.problems_json(),
            "tables": [
                table.to_json(now_ms) | self._figures(table.table, now_ms) for table in self.tables
            ],
        }

    def to_text(self) -> bytes:
        """Return the whole of `/status` as JSON text with a line for each table."""
        whole = self.to_json()
        tables = whole.pop("tables")
        assert isinstance(tables, list)
        # One after the other: a single call would hold the GIL until it is done.
        lines = ",\n".join(map(json.dumps, tables))
        head = json.dumps(whole).removesuffix("}")
        return f'{head}, "tables": [\n{lines}\n]}}\n'.encode()

    def problems_json(self) -> list[dict[str, object]]:
        """Return the problems that concern no single table."""
        return [each.to_json() for each in self.problems.problems]

    def table_json(self, name: str) -> dict[str, object] | None:
        """Return what `/status` shows of one table; None for an unknown name."""
        with self._lock:
            table = self._tables.get(name)
        if table is None:
            return None
        now_ms = self._clock.now_ms()
        return table.to_json(now_ms) | self._figures(name, now_ms)

    def file_sizes(self, name: str) -> tuple[int, ...]:
        """Return a table's files by size, as in `TableMeasured`; empty if not known."""
        size = self.gauges.figures(name).size
        return () if size is None else size.size_counts

    def _figures(self, table: str, now_ms: int) -> dict[str, object]:
        figures = self.gauges.figures(table)
        with self._lock:
            maintenance = self._maintenance.describe(table_of(table))
            now = self._clock.monotonic()
            rates = {change: r.per_second(now) for change, r in self._rates.get(table, {}).items()}
        growth, watched = self.gauges.growth(table), self.gauges.watched_seconds(table)
        return {
            "lag_files": figures.lag_files(),
            "lag_bytes": figures.lag_bytes(),
            "rows_per_second": round(sum(rates.values()), 3),
            "rows_per_second_by_change": {change: round(r, 3) for change, r in rates.items()},
            "snapshot_progress": figures.snapshot_progress,
            "retention_headroom_seconds": figures.headroom_seconds(now_ms),
            "last_progress_ms": figures.saved_ms,
            "maintenance": maintenance,
            "size": None if figures.size is None else size_json(figures.size, growth, watched),
        }

    def handle(self, event: events.Event) -> None:
        """Handle an event; those about no configured table are ignored."""
        name = getattr(event, "table", None)
        self.gauges.handle(event)
        self.problems.handle(event)
        with self._lock:
            self._maintenance.handle(event)
            if isinstance(event, events.DeliveryAcknowledged):
                self._count(event, self._clock.monotonic())
            if isinstance(event, events.TableAdded):
                fresh = TableStatus(table=event.table, engine=event.engine)
                self._tables.setdefault(event.table, fresh)
            elif isinstance(event, events.TableRemoved):
                self._tables.pop(event.table, None)
                self._rates.pop(event.table, None)
            if isinstance(event, events.LogAssessed):
                self._assessment(event)
            elif name in self._tables:
                self._tables[name] = _after(self._tables[name], event, self._clock.now_ms())

    def _count(self, event: events.DeliveryAcknowledged, now: float) -> None:
        rates = self._rates.setdefault(event.table, {})
        # All rates of a table begin at the same time, so that their sum is the rate of all rows.
        began = next((rate.began for rate in rates.values()), now)
        for change, rows in event.rows.items():
            rates.setdefault(change, MinuteRate(began)).add(rows, now)

    def _assessment(self, event: events.LogAssessed) -> None:
        """Set the status of a table that is maintained but not delivered."""
        if event.is_alone and event.table in self._tables:
            self._tables[event.table] = replace(
                self._tables[event.table],
                source=event.path,
                state="running",
                is_ready=True,
                head_version=event.version,
            )


def _after(status: TableStatus, event: events.Event, now_ms: int) -> TableStatus:
    match event:
        case events.PipelineStarted():
            return _apply_start(status, event)
        case events.TableOpened() | events.OffsetChosen() | events.OffsetSaved():
            return _read_on(status, event)
        case events.BacklogMeasured():
            return _apply_backlog(status, event)
        case events.DeliveryAcknowledged():
            kinds = {**status.rows, **event.rows}
            rows = {k: status.rows.get(k, 0) + event.rows.get(k, 0) for k in kinds}
            return replace(status, rows=rows, attempt=0, failing_since_ms=None)
        case events.RetryScheduled():
            retry_ms = now_ms + round(event.wait_seconds * 1000)
            return replace(
                _apply_error(status, event, now_ms), state="retrying", next_retry_ms=retry_ms
            )
        case events.PipelineFailed():
            return replace(_apply_error(status, event, now_ms), state="failed", next_retry_ms=None)
        case events.GapMet() | events.CommitSkipped() | events.DeadLettersStored():
            return _with_loss(status, event)
        case events.TableAltered():
            return replace(status, engine=event.engine)
        case events.PipelinePaused() | events.PipelineStopped():
            return _at_rest(status, event)
        case _:
            return status


def _read_on(
    status: TableStatus,
    event: events.TableOpened | events.OffsetChosen | events.OffsetSaved,
) -> TableStatus:
    reading = replace(status, activity="reading")
    if isinstance(event, events.TableOpened):
        return replace(reading, format=event.format, capabilities=event.capabilities)
    return replace(reading, version=event.version, offset=event.offset)


def _with_loss(
    status: TableStatus, event: events.GapMet | events.CommitSkipped | events.DeadLettersStored
) -> TableStatus:
    """Count rows that did not reach the sink as they should."""
    match event:
        case events.GapMet():
            return replace(status, gaps=status.gaps + 1, last_gap=event.error)
        case events.CommitSkipped():
            return replace(status, skipped_commits=status.skipped_commits + 1)
        case _:
            count = status.dead_letters.get(event.topic, 0) + event.records
            return replace(status, dead_letters={**status.dead_letters, event.topic: count})


def _apply_start(status: TableStatus, event: events.PipelineStarted) -> TableStatus:
    return replace(
        status,
        source=event.source,
        sink=event.sink,
        guarantee=event.guarantee,
        state="starting",
        activity="opening",
    )


def _apply_backlog(status: TableStatus, event: events.BacklogMeasured) -> TableStatus:
    measured = replace(
        status,
        version=event.version,
        delivered=event.delivered_version,
        head_version=event.head_version,
        lag_versions=event.versions,
        oldest_timestamp_ms=event.oldest_timestamp_ms,
    )
    if event.is_idle:
        # One that waits for its first successful attempt is not ready.
        return replace(measured, is_ready=status.is_ready or status.state != "retrying")
    since_ms = status.failing_since_ms if event.versions else None
    return replace(
        measured, state="running", is_ready=True, next_retry_ms=None, failing_since_ms=since_ms
    )


def _at_rest(
    status: TableStatus, event: events.PipelinePaused | events.PipelineStopped
) -> TableStatus:
    if isinstance(event, events.PipelineStopped):
        return replace(status, state="stopped", next_retry_ms=None)
    held = replace(status, state="paused", next_retry_ms=None, paused_by=event.by)
    if status.lag_versions:
        return held
    # The log is no longer polled: a lag of 0 may soon be wrong.
    return replace(held, is_ready=False, head_version=None, lag_versions=None)


def _apply_error(
    status: TableStatus, event: events.RetryScheduled | events.PipelineFailed, now_ms: int
) -> TableStatus:
    return replace(
        status,
        error_ms=now_ms,
        last_error=event.error,
        last_error_code=event.error_code,
        failing_since_ms=status.failing_since_ms or now_ms,
        attempt=status.attempt + 1,
    )


@dataclass(slots=True)
class _MaintenanceState:
    assessed_version: int | None = None
    assessed_ms: int | None = None
    due: dict[str, str] = field(default_factory=dict)
    refused: dict[str, object] | None = None
    running: str | None = None
    jobs: dict[str, dict[str, object]] = field(default_factory=dict)


class MaintenanceBoard:
    """Keeps the last result of each job of each table. Used under the caller's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tables: dict[str, _MaintenanceState] = {}

    def handle(self, event: events.Event) -> None:
        """Handle an event; all but those of maintenance are ignored."""
        now_ms = self._clock.now_ms()
        match event:
            case events.MaintenanceStarted():
                self._get_state(event.table).running = event.job
            case events.LogAssessed():
                state = self._end_job(event.table)
                state.assessed_version, state.assessed_ms = event.version, now_ms
                reasons = event.due_reasons or ("",) * len(event.due)
                state.due = dict(zip(event.due, reasons, strict=True))
                state.refused = None
            case events.LogMaintained():
                state = self._end_job(event.table)
                state.due.pop(event.job, None)
                state.jobs[event.job] = _result(event, now_ms)
            case events.MaintenanceFailed():
                self._end_job(event.table).jobs[event.job] = {
                    "result": "failed",
                    "ended_ms": now_ms,
                    "duration_seconds": round(event.duration_seconds, 6),
                    "message": event.error,
                    "error_code": event.error_code,
                }
            case events.MaintenanceRefused():
                self._end_job(event.table).refused = {
                    "code": event.error_code,
                    "message": event.error,
                }
            case events.TableMeasured() | events.GrowthUnavailable():
                self._end_measuring(event.table)
            case events.MaintenanceYielded():
                self._end_job(event.table)
            case events.TableRemoved():
                self._tables.pop(event.table, None)
            case _:
                return

    def describe(self, table: str) -> dict[str, object] | None:
        """Return what `/status` shows; None for a table that is not maintained."""
        state = self._tables.get(table)
        if state is None:
            return None
        return {
            "assessed_version": state.assessed_version,
            "assessed_ms": state.assessed_ms,
            "due": list(state.due),
            "due_reasons": dict(state.due),
            "running": state.running,
            "refused": state.refused,
            "jobs": dict(state.jobs),
        }

    def _end_measuring(self, table: str) -> None:
        """Note that a table's size was measured, by maintenance or by its pipeline."""
        state = self._tables.get(table)
        if state is not None and state.running == _MEASURE:
            self._end_job(table).jobs.pop(_MEASURE, None)

    def _end_job(self, table: str) -> _MaintenanceState:
        state = self._get_state(table)
        state.running = None
        return state

    def _get_state(self, table: str) -> _MaintenanceState:
        return self._tables.setdefault(table, _MaintenanceState())


def _result(event: events.LogMaintained, now_ms: int) -> dict[str, object]:
    return {
        "result": event.result,
        "version": event.version,
        "ended_ms": now_ms,
        "duration_seconds": round(event.duration_seconds, 6),
        "files": event.files,
        "bytes": event.bytes,
        "reason": event.reason,
        "message": f"{event.summary} {event.reason}",
        "error_code": None,
    }
