"""The recent history of each table, built from events within a budget of bytes.

The page draws it, in addition to the current status (`status.py`, `table_gauges.py`): commits,
growth, schema changes, maintenance, errors, and figures over time. It is kept over restarts in one
small file for each table, written periodically. A file that is torn or has another shape is
ignored. A folder that cannot be written is reported once, and only loses the history.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailerd.clock import Clock
from tailerd.telemetry import events
from tailerd.telemetry.freshness import Objective
from tailerd.telemetry.series import (
    RESOLUTIONS,
    Resolution,
    Sample,
    Series,
    resolutions_within,
)
from tailerd.telemetry.status import StatusBoard
from tailerd.telemetry.table_history import Limits, TableHistory
from tailerd.telemetry.timeline import Timeline

BUDGET_BYTES = 32 * 1024 * 1024
MAX_DAEMON_EVENTS = 300
SPARK_POINTS = 30
_MAX_DURATIONS = 1000


@dataclass(slots=True)
class _Since:
    """Deliveries since the last sample."""

    rows: int = 0
    durations: list[float] = field(default_factory=list)

    def add(self, rows: int, duration_seconds: float) -> None:
        self.rows += rows
        if len(self.durations) < _MAX_DURATIONS:
            self.durations.append(duration_seconds)


class HistoryBoard:
    """Builds one `TableHistory` for each table from events. Thread-safe.

    Args:
        budget_bytes: Approximate size of all histories together; shared by all tables.
    """

    def __init__(self, clock: Clock, budget_bytes: int = BUDGET_BYTES) -> None:
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._tables: dict[str, TableHistory] = {}
        self._limits = Limits.within(budget_bytes // 2)
        self._shared_by = 0
        self._resolutions: Sequence[Resolution] = RESOLUTIONS
        self._series: dict[str, Series] = {}
        self._since: dict[str, _Since] = {}
        self._sampled_at: float | None = None
        self._daemon_series = Series()
        self._daemon_events = Timeline(MAX_DAEMON_EVENTS)
        self._dirty: set[str] = set()

    def handle(self, event: events.Event) -> None:
        """Handle an event; those that belong to no history are ignored."""
        name: str | None = getattr(event, "table", None)
        now_ms = self._clock.now_ms()
        with self._lock:
            self._daemon_events.take(event, now_ms, least="info" if name is None else "warning")
            if name is None:
                return
            if isinstance(event, events.TableRemoved):
                self._tables.pop(name, None)
                self._series.pop(name, None)
            elif self._get_history(name).take(event, now_ms):
                self._dirty.add(name)
            if isinstance(event, events.DeliveryAcknowledged):
                since = self._since.setdefault(name, _Since())
                since.add(sum(event.rows.values()), event.duration_seconds)

    def _get_history(self, name: str) -> TableHistory:
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = TableHistory()
            self._share(known)
        return known

    def _share(self, added: TableHistory) -> None:
        """Give each table its share of the budget: half for records, half for its series."""
        if len(self._tables) <= self._shared_by:
            added.limit(self._limits)
            return
        # A margin: otherwise each new table would change the limits of all.
        self._shared_by = len(self._tables) * 5 // 4
        self._limits = Limits.within(self._budget_bytes // 2 // self._shared_by)
        for table in self._tables.values():
            table.limit(self._limits)

    def sample(
        self, lags: Mapping[str, float | None], objectives: Mapping[str, Objective] | None = None
    ) -> None:
        """Record the current lag of each table in seconds; None if it is not known.

        Deliveries since the last sample count for this one. Of tables with an objective, the time
        since then counts as fresh or late.
        """
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        with self._lock:
            seconds = 0.0 if self._sampled_at is None else now - self._sampled_at
            self._sampled_at = now
            since, self._since = self._since, {}
            share = self._budget_bytes // 2 // max(1, len(lags))
            resolutions = resolutions_within(share)
            if resolutions != self._resolutions:
                self._resolutions = resolutions
                for known in self._series.values():
                    known.limit(resolutions)
            for name, lag in lags.items():
                series = self._series.get(name)
                if series is None:
                    series = self._series[name] = Series(resolutions)
                done = since.get(name) or _Since()
                series.add(_sample(seconds, done, lag), now_ms)
                objective = (objectives or {}).get(name)
                if objective is not None and lag is not None:
                    freshness = self._get_history(name).freshness
                    if freshness.add(seconds, lag, objective, now_ms):
                        self._dirty.add(name)
            worst = max((lag for lag in lags.values() if lag is not None), default=None)
            all_done = _Since()
            for done in since.values():
                all_done.rows += done.rows
                all_done.durations.extend(done.durations)
            self._daemon_series.add(_sample(seconds, all_done, worst), now_ms)

    def series(self, name: str | None, seconds: int) -> dict[str, object]:
        """Return the figures of a table over time, as `Series.to_json`; None means all tables."""
        with self._lock:
            series = self._daemon_series if name is None else self._series.get(name, Series())
            return series.to_json(seconds, self._clock.now_ms())

    def spark(self, name: str) -> list[float | None]:
        """Return a table's newest rates, ten seconds apart, oldest first."""
        with self._lock:
            series = self._series.get(name)
            return [] if series is None else series.newest(SPARK_POINTS)

    def events(self) -> list[dict[str, object]]:
        """Return the events of the daemon, and the problems of its tables, oldest first."""
        with self._lock:
            return self._daemon_events.to_json()

    def to_json(self, name: str) -> dict[str, object]:
        """Return a table's history as its page shows it; empty for an unknown table."""
        with self._lock:
            return self._tables.get(name, TableHistory()).to_json()

    def freshness(self, name: str, objective: Objective) -> dict[str, float]:
        """Return how much of the last 30 days a table was fresh, as `FreshnessDays.describe`."""
        with self._lock:
            days = self._tables.get(name, TableHistory()).freshness
            return days.describe(objective, self._clock.now_ms())

    def dump(self, name: str) -> dict[str, object]:
        """Return the input of `restore`: a table's history, and its series."""
        with self._lock:
            history = self._tables.get(name, TableHistory()).to_json()
            return history | {"series": self._series.get(name, Series()).save()}

    def saved_daemon(self) -> dict[str, object]:
        """Return the input of `restore_daemon`."""
        with self._lock:
            return {"events": self._daemon_events.to_json(), "series": self._daemon_series.save()}

    def restore(self, name: str, saved: object) -> bool:
        """Restore a table's history from the output of `saved`; False if invalid."""
        with self._lock:
            if not self._get_history(name).restore(saved, self._clock.now_ms()):
                return False
            assert isinstance(saved, dict)
            self._series.setdefault(name, Series(self._resolutions)).restore(saved.get("series"))
            return True

    def restore_daemon(self, saved: object) -> bool:
        """Restore the daemon's history from the output of `saved_daemon`; False if invalid."""
        if not isinstance(saved, dict):
            return False
        with self._lock:
            self._daemon_series.restore(saved.get("series"))
            return self._daemon_events.restore(saved.get("events"))

    def take_dirty(self) -> list[str]:
        """Return the tables whose history changed since the last call."""
        with self._lock:
            names, self._dirty = sorted(self._dirty), set()
        return names


def _sample(seconds: float, done: _Since, lag: float | None) -> Sample:
    return Sample(seconds=seconds, rows=done.rows, lag_seconds=lag, durations=done.durations)


SAMPLE_SECONDS = 5.0
_SAVE_EVERY = 12
"""Samples between two saves: a minute."""
_SAVE_ALL_EVERY = 15
"""Saves between two saves of all tables: figures over time change even without events."""
DAEMON = "_daemon"
"""Name of the daemon's own history; no table has it."""


class HistoryStore(Protocol):
    """Keeps one history for each table. Blocking, in threads without an event loop."""

    def load(self, name: str) -> object | None:
        """Return the saved history of a table; None if there is none that can be read."""
        ...

    def save(self, histories: Iterable[tuple[str, dict[str, object]]]) -> None:
        """Write each table's history atomically; raises `OSError`."""
        ...

    def prune(self) -> None:
        """Remove the oldest files of too many."""
        ...


class HistorySaver:
    """Samples the lags of all tables and saves their histories in the background.

    Args:
        status: Source of the lags, as in `/status`.
        objectives: Returns the objectives of tables, by name.
        on_unsaved: Called once with a file that cannot be saved, and why.
    """

    def __init__(
        self,
        board: HistoryBoard,
        store: HistoryStore,
        *,
        status: StatusBoard,
        clock: Clock,
        objectives: Callable[[], Mapping[str, Objective]],
        on_unsaved: Callable[[str, str], None],
    ) -> None:
        self._board = board
        self._store = store
        self._status = status
        self._clock = clock
        self._objectives = objectives
        self._on_unsaved = on_unsaved
        self._known: set[str] = set()
        self._has_complained = False
        self._is_daemon_known = False

    def restore(self) -> None:
        """Read the histories that an earlier process saved for newly added tables; blocking."""
        if not self._is_daemon_known:
            self._is_daemon_known = True
            self._board.restore_daemon(self._store.load(DAEMON))
        names = {table.table for table in self._status.tables}
        for name in sorted(names - self._known):
            self._board.restore(name, self._store.load(name))
        self._known = names

    def sample(self) -> None:
        """Record every table's lag."""
        now_ms = self._clock.now_ms()
        lags = {each.table: each.lag_seconds(now_ms) for each in self._status.tables}
        self._board.sample(lags, self._objectives())

    def save(self, *, is_all: bool = False) -> None:
        """Write the histories that changed since the last save, or all of them; blocking."""
        self._store.prune()
        names = self._board.take_dirty()
        if is_all:
            names = [table.table for table in self._status.tables]
        try:
            if names:
                tables = ((name, self._board.dump(name)) for name in names)
                self._store.save(itertools.chain(tables, [(DAEMON, self._board.saved_daemon())]))
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._on_unsaved(str(error.filename or ""), error.strerror or str(error))

    async def run(self) -> None:
        """Sample and save until cancelled."""
        for number in itertools.count(1):
            for _ in range(_SAVE_EVERY):
                await asyncio.to_thread(self.sample)
                await self._clock.sleep(SAMPLE_SECONDS)
                await asyncio.to_thread(self.restore)
            await asyncio.to_thread(self.save, is_all=number % _SAVE_ALL_EVERY == 0)
