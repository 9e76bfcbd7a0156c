"""Keeps the history of tables over restarts: one small file each, written periodically.

The history is only displayed. A file that is torn or has another shape is ignored; a folder that
cannot be written is reported once, and only loses the history.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from tailerd.clock import Clock
from tailerd.telemetry.history import HistoryBoard
from tailerd.telemetry.status import StatusBoard

SAMPLE_SECONDS = 5.0
_SAVE_EVERY = 12
"""Samples between two saves: a minute."""
_SAVE_ALL_EVERY = 15
"""Saves between two saves of all tables: figures over time change even without events."""
DAEMON = "_daemon"
"""Name of the daemon's own history; no table has it."""


class KeepsHistory(Protocol):
    """Keeps one history for each table. Blocking, in threads without an event loop."""

    def load(self, name: str) -> object | None:
        """Return the saved history of a table; None if there is none that can be read."""
        ...

    def save(self, name: str, history: dict[str, object]) -> None:
        """Write a table's history atomically; raises `OSError`."""
        ...

    def prune(self) -> None:
        """Remove the oldest files of too many."""
        ...


class HistoryKeeper:
    """Samples the lags of all tables and saves their histories in the background.

    Args:
        status: Source of the lags, as in `/status`.
        on_unsaved: Called once with a file that cannot be saved, and why.
    """

    def __init__(
        self,
        board: HistoryBoard,
        store: KeepsHistory,
        *,
        status: StatusBoard,
        clock: Clock,
        on_unsaved: Callable[[str, str], None],
    ) -> None:
        self._board = board
        self._store = store
        self._status = status
        self._clock = clock
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
        self._board.sample({each.table: each.lag_seconds(now_ms) for each in self._status.tables})

    def save(self, *, is_all: bool = False) -> None:
        """Write the histories that changed since the last save, or all of them; blocking."""
        self._store.prune()
        names = self._board.take_dirty()
        if is_all:
            names = [table.table for table in self._status.tables]
        try:
            for name in names:
                self._store.save(name, self._board.saved(name))
            if names:
                self._store.save(DAEMON, self._board.saved_daemon())
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
