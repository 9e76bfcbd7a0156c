"""The results of every table's log maintenance, built from events: a part of `/status`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailerd.clock import Clock
from tailerd.telemetry import events

_MEASURE = "measure"


@dataclass(slots=True)
class _Kept:
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
        self._tables: dict[str, _Kept] = {}

    def handle(self, event: events.Event) -> None:
        """Handle an event; all but those of maintenance are ignored."""
        now_ms = self._clock.now_ms()
        match event:
            case events.MaintenanceStarted():
                self._kept(event.table).running = event.job
            case events.LogAssessed():
                kept = self._ended(event.table)
                kept.assessed_version, kept.assessed_ms = event.version, now_ms
                reasons = event.due_reasons or ("",) * len(event.due)
                kept.due = dict(zip(event.due, reasons, strict=True))
                kept.refused = None
            case events.LogMaintained():
                kept = self._ended(event.table)
                kept.due.pop(event.job, None)
                kept.jobs[event.job] = _result(event, now_ms)
            case events.MaintenanceFailed():
                self._ended(event.table).jobs[event.job] = {
                    "result": "failed",
                    "ended_ms": now_ms,
                    "duration_seconds": round(event.duration_seconds, 6),
                    "message": event.error,
                    "error_code": event.error_code,
                }
            case events.MaintenanceRefused():
                self._ended(event.table).refused = {
                    "code": event.error_code,
                    "message": event.error,
                }
            case events.TableMeasured() | events.GrowthUnavailable():
                self._measured(event.table)
            case events.MaintenanceYielded():
                self._ended(event.table)
            case events.TableRemoved():
                self._tables.pop(event.table, None)
            case _:
                return

    def of(self, table: str) -> dict[str, object] | None:
        """Return what `/status` shows; None for a table that is not maintained."""
        kept = self._tables.get(table)
        if kept is None:
            return None
        return {
            "assessed_version": kept.assessed_version,
            "assessed_ms": kept.assessed_ms,
            "due": list(kept.due),
            "due_reasons": dict(kept.due),
            "running": kept.running,
            "refused": kept.refused,
            "jobs": dict(kept.jobs),
        }

    def _measured(self, table: str) -> None:
        """Note that a table's size was measured, by maintenance or by its pipeline."""
        kept = self._tables.get(table)
        if kept is not None and kept.running == _MEASURE:
            self._ended(table).jobs.pop(_MEASURE, None)

    def _ended(self, table: str) -> _Kept:
        kept = self._kept(table)
        kept.running = None
        return kept

    def _kept(self, table: str) -> _Kept:
        return self._tables.setdefault(table, _Kept())


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
