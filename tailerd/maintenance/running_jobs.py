"""Tracks the job that the maintenance process runs: if one kills it, the others must continue.

A table that kills the process repeatedly is skipped longer each time. Pure.
"""

from __future__ import annotations

import random

from tailerd.backoff import Backoff
from tailerd.errors import MaintenanceProcessError
from tailerd.maintenance.table_maintainer import SURVEY
from tailerd.maintenance.table_size import MEASURE
from tailerd.telemetry import events

_SKIP = Backoff(first_seconds=2.0, max_seconds=3600.0)


class RunningJobs:
    """Tracks the running job from the events of one process after another."""

    def __init__(self) -> None:
        self._running: events.MaintenanceStarted | None = None
        self._deaths: dict[tuple[str, str], int] = {}
        self._skipped_until: dict[str, float] = {}
        self._random = random.Random()

    def handle(self, event: events.Event) -> None:
        """Handle an event of the process."""
        match event:
            case events.MaintenanceStarted():
                self._running = event
            case events.LogMaintained():
                self._running = None
                self._deaths.pop((event.table, event.job), None)
            case events.LogAssessed():
                self._running = None
                self._deaths.pop((event.table, SURVEY), None)
            case events.TableMeasured() | events.GrowthUnavailable():
                self._running = None
                self._deaths.pop((event.table, MEASURE), None)
            case (
                events.MaintenanceFailed()
                | events.MaintenanceRefused()
                | events.MaintenanceYielded()
            ):
                self._running = None

    def on_process_death(self, why: str, now: float) -> events.MaintenanceFailed | None:
        """Skip the table of the job during which the process died; return the event to emit."""
        running, self._running = self._running, None
        if running is None:
            return None
        job = (running.table, running.job)
        deaths = self._deaths.get(job, 0)
        self._deaths[job] = deaths + 1
        seconds = _SKIP.wait_seconds(deaths, self._random)
        self._skipped_until[running.table] = now + seconds
        return events.MaintenanceFailed(
            table=running.table,
            job=running.job,
            error_code=MaintenanceProcessError.code,
            error=f"{why} This table is skipped for {seconds:.0f} s.",
        )

    def skipped(self, now: float) -> dict[str, float]:
        """Return for how many seconds tables are still skipped."""
        self._skipped_until = {name: at for name, at in self._skipped_until.items() if at > now}
        return {name: at - now for name, at in self._skipped_until.items()}
