"""`/daemon` and `/tables/{name}/configuration`: the process, its settings, its alerts."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from aiohttp import web

import tailerd
from tailerd.clock import Clock
from tailerd.config import Config, TableConfig
from tailerd.config.shown import shown_settings
from tailerd.telemetry.alerts import EVALUATE_SECONDS, AlertBoard
from tailerd.telemetry.freshness import Objective
from tailerd.telemetry.history import HistoryBoard
from tailerd.telemetry.status import StatusBoard
from tailerd.web.answers import SharedBody, send_body

_JSON = {"Content-Type": "application/json; charset=utf-8"}
_TABLES = frozenset({"tables", "discover"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The active configuration, and how much of its `memory` is in use."""

    config: Config
    memory_bytes: int
    memory_used_bytes: Callable[[], int]


class DaemonRoutes:
    """Serves the daemon's properties, settings and alerts.

    Attributes:
        settings: The active settings; None before the configuration was read.
        pages: Returns the number of open pages.
    """

    def __init__(
        self,
        status: StatusBoard,
        history: HistoryBoard,
        *,
        clock: Clock,
        pages: Callable[[], int],
        unknown: Callable[[str], web.Response | None],
    ) -> None:
        self.settings: Settings | None = None
        self._status = status
        self._history = history
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._pages = pages
        self._unknown = unknown
        self.alerts = AlertBoard(clock)
        self._body = SharedBody(self._text)

    def key_columns(self, table: str) -> list[str]:
        """Return the configured columns that identify a row of a table; empty if there are none."""
        known = self._section(table)
        return [] if known is None else list(known.pairing_columns)

    def _section(self, table: str) -> TableConfig | None:
        return None if self.settings is None else self.settings.config.tables.get(table)

    def objective(self, table: str) -> Objective | None:
        """Return the configured objective of a table; None if there is none."""
        known = self._section(table)
        return None if known is None else _read_objective(known)

    def objectives(self) -> dict[str, Objective]:
        """Return the configured objectives of tables, by name."""
        tables = {} if self.settings is None else self.settings.config.tables
        found = ((name, _read_objective(table)) for name, table in tables.items())
        return {name: objective for name, objective in found if objective is not None}

    async def run(self) -> None:
        """Keep the alerts up to date until cancelled."""
        while True:
            await asyncio.to_thread(self._evaluate)
            await self._clock.sleep(EVALUATE_SECONDS)

    def _evaluate(self) -> None:
        # One table at a time: to keep the values of a thousand makes Python look for garbage.
        tables = (self._status.table_json(table.table) for table in self._status.tables)
        known = (table for table in tables if table is not None)
        self.alerts.evaluate(known, self._status.problems_json())

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/daemon", self.daemon),
            web.get("/tables/{name}/configuration", self.configuration),
        ]

    async def daemon(self, request: web.Request) -> web.StreamResponse:
        """Show the process, its alerts, its events and its settings, at most a second old."""
        found = await self._body.get()
        return await send_body(request, found.body, _JSON)

    async def configuration(self, request: web.Request) -> web.StreamResponse:
        """Show the settings of one table, defaults included, without secrets."""
        name = request.match_info["name"]
        if (refused := self._unknown(name)) is not None:
            return refused
        table = self._section(name)
        shown = {} if table is None else shown_settings(table)
        return await send_body(request, json.dumps(shown).encode(), _JSON)

    def _text(self) -> bytes:
        settings = self.settings
        return json.dumps(
            {
                "version": tailerd.__version__,
                "name": "" if settings is None else settings.config.name,
                "started_ms": self._started_ms,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "memory_bytes": _resident_bytes(),
                "budget_bytes": None if settings is None else settings.memory_bytes,
                "budget_used_bytes": None if settings is None else settings.memory_used_bytes(),
                "threads": threading.active_count(),
                "open_files": _open_files(),
                "pages": self._pages(),
                "state": "" if settings is None else settings.config.state,
                "tables": len(self._status.tables),
                "alerts": [asdict(alert) for alert in self.alerts.alerts()],
                "events": self._history.events(),
                "configuration": {}
                if settings is None
                else shown_settings(settings.config, without=_TABLES),
            }
        ).encode()


def _read_objective(table: TableConfig) -> Objective | None:
    objective = table.freshness
    if objective is None:
        return None
    return Objective(within_seconds=objective.within, target=objective.target)


def _resident_bytes() -> int | None:
    """Return the resident memory of the process; None if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - entries vanish while they are listed
    except OSError:
        return None
