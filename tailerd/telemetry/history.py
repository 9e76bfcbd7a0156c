"""What happened to each table lately, folded from events, in a budget of bytes.

Beside the present (`status.py`, `table_gauges.py`) this is the past that the page draws: commits,
growth, schema changes, maintenance, errors. `history_store.py` keeps it over restarts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

from tailerd.clock import Clock
from tailerd.telemetry import events
from tailerd.telemetry.table_history import Limits, TableHistory

BUDGET_BYTES = 32 * 1024 * 1024
LAG_SAMPLES = 120
_LAG_BYTES = 32


class HistoryBoard:
    """Folds events into one `TableHistory` for each table; any thread may tell and ask.

    Args:
        budget_bytes: What all tables together may take, about; the more tables, the less each.
    """

    def __init__(self, clock: Clock, budget_bytes: int = BUDGET_BYTES) -> None:
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._tables: dict[str, TableHistory] = {}
        self._lags: dict[str, deque[float | None]] = {}
        self._dirty: set[str] = set()

    def handle(self, event: events.Event) -> None:
        """Take an event; those about no table's past are passed over."""
        name: str | None = getattr(event, "table", None)
        if name is None:
            return
        with self._lock:
            if isinstance(event, events.TableRemoved):
                self._tables.pop(name, None)
                self._lags.pop(name, None)
            elif self._of(name).take(event, self._clock.now_ms()):
                self._dirty.add(name)

    def _of(self, name: str) -> TableHistory:
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = TableHistory()
            share = self._budget_bytes // len(self._tables)
            limits = Limits.within(share - LAG_SAMPLES * _LAG_BYTES)
            for table in self._tables.values():
                table.limit(limits)
        return known

    def sample(self, lags: Mapping[str, float | None]) -> None:
        """Note the lag of each table in seconds, at this time; None where it is not known."""
        with self._lock:
            for name, seconds in lags.items():
                self._lags.setdefault(name, deque(maxlen=LAG_SAMPLES)).append(seconds)

    def lags(self, name: str) -> list[float | None]:
        """Return a table's samples, oldest first."""
        with self._lock:
            return list(self._lags.get(name, ()))

    def to_json(self, name: str) -> dict[str, object]:
        """Return a table's past as its page shows it; empty for a table nobody told of."""
        with self._lock:
            return self._tables.get(name, TableHistory()).to_json()

    def restore(self, name: str, saved: object) -> bool:
        """Take a table's past as `to_json` gave it once; False where it has another shape."""
        with self._lock:
            return self._of(name).restore(saved)

    def take_dirty(self) -> list[str]:
        """Return the tables whose past changed since this was asked last."""
        with self._lock:
            names, self._dirty = sorted(self._dirty), set()
        return names
