"""A timeline of events for people: bounded, oldest first, kept over restarts.

A repeated event, such as a retry, is one record with a count. For one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tailerd.telemetry import events

Record = dict[str, Any]
Level = Literal["info", "warning", "error"]

_LONGEST_TEXT = 600
_LOOK_BACK = 4
_REPEATED = frozenset(
    {"retry", "maintenance", "maintenance failed", "dead letters", "discovery", "notifications"}
)
"""Kinds that are counted, not repeated, if the newest `_LOOK_BACK` records have the same."""


class Timeline:
    """The newest records of one table, or of the daemon."""

    def __init__(self, most: int) -> None:
        """Initialize; hold `most` records."""
        self.most = most
        self._records: deque[Record] = deque()

    def take(self, event: events.Event, now_ms: int, *, least: Level = "info") -> bool:
        """Add an event; return whether the timeline shows it.

        Args:
            least: Less important events are ignored.
        """
        record = describe_event(event)
        if record is None or (least != "info" and record["level"] == "info"):
            return False
        self._note(record, getattr(event, "table", None), now_ms)
        return True

    def add(self, kind: str, level: Level, text: str, version: int | None, now_ms: int) -> None:
        """Add a record that has no event."""
        record = {"kind": kind, "code": "", "level": level, "text": text[:_LONGEST_TEXT]}
        self._note({**record, "version": version}, None, now_ms)

    def _note(self, record: Record, table: str | None, now_ms: int) -> None:
        for known in list(self._records)[-_LOOK_BACK:]:
            is_same = all(known.get(name) == record[name] for name in ("kind", "code"))
            if record["kind"] in _REPEATED and is_same and known.get("table") == table:
                known.update(last_ms=now_ms, count=known["count"] + 1, text=record["text"])
                known["version"] = record["version"]
                return
        self._records.append(
            {**record, "table": table, "at_ms": now_ms, "last_ms": now_ms, "count": 1}
        )
        self.trim()

    def trim(self) -> None:
        """Drop the oldest of more than `most`."""
        while len(self._records) > self.most:
            self._records.popleft()

    def to_json(self) -> list[Record]:
        """Return copies of the records, oldest first."""
        return [dict(record) for record in self._records]

    def restore(self, saved: object) -> bool:
        """Insert the records of an earlier process first; False if their shape is invalid."""
        if not isinstance(saved, list) or not all(_is_record(each) for each in saved):
            return False
        self._records.extendleft(reversed(saved))
        self.trim()
        return True


def _is_record(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(type(value.get(name)) is int for name in ("at_ms", "last_ms", "count"))
        and all(isinstance(value.get(name), str) for name in ("kind", "level", "text"))
    )


def describe_event(event: events.Event) -> Record | None:
    """Return the record of an event; None if the timeline does not show it."""
    make = _DESCRIBE.get(type(event))
    if make is None:
        return None
    kind, level, text = make(event)
    version = getattr(event, "end_version", getattr(event, "version", None))
    return {
        "kind": kind,
        "code": getattr(event, "error_code", "") or getattr(event, "job", ""),
        "level": level,
        "text": text[:_LONGEST_TEXT],
        "version": version,
    }


_Describe = Callable[[Any], tuple[str, Level, str]]


def _start(event: events.OffsetChosen) -> tuple[str, Level, str]:
    verb = "Resumed at its saved offset" if event.is_resumed else "Starts without a saved offset"
    return "start", "info", f"{verb}: version {event.version}."


def _gap(event: events.GapMet) -> tuple[str, Level, str]:
    return "gap", "error", event.error


def _dead_letters(event: events.DeadLettersStored) -> tuple[str, Level, str]:
    records = f"{event.records} record{'s' if event.records != 1 else ''}"
    return "dead letters", "warning", f"{records} to {event.topic}."


def _schema(event: events.SchemaAdopted) -> tuple[str, Level, str]:
    return "schema", "info", event.reason


def _columns(event: events.SchemaChanged) -> tuple[str, Level, str]:
    # `schema` is of the table: it may have more columns, and changes before it is delivered.
    return "schema delivered", "info", f"{event.summary[:1].upper()}{event.summary[1:]}."


def _describe_removal(event: events.TableRemoved) -> tuple[str, Level, str]:
    return "table removed", "warning", event.reason


def _describe_error(kind: str, level: Level) -> _Describe:
    """Return a function that describes an event by its error, or its reason."""
    return lambda event: (
        kind,
        level,
        getattr(event, "error", "") or getattr(event, "reason", "") or kind.capitalize(),
    )


def _constant(kind: str, level: Level, text: str) -> _Describe:
    return lambda event: (kind, level, text)


def _describe_field(kind: str, level: Level, text: str, field: str) -> _Describe:
    return lambda event: (kind, level, text.format(getattr(event, field)))


def _paused(event: events.PipelinePaused) -> tuple[str, Level, str]:
    return "paused", "info", f"Paused by {event.by or 'an operator'}."


_DESCRIBE: Mapping[type[events.Event], _Describe] = {
    events.OffsetChosen: _start,
    events.PipelinePaused: _paused,
    events.PipelineStopped: _constant("stopped", "info", "Stopped; its offset is saved."),
    events.PipelineFailed: _describe_error("failed", "error"),
    events.RetryScheduled: _describe_error("retry", "warning"),
    events.GapMet: _gap,
    events.CommitSkipped: _describe_error("commit skipped", "error"),
    events.DeadLettersStored: _dead_letters,
    events.SchemaAdopted: _schema,
    events.SchemaChanged: _columns,
    events.TableAltered: _constant("configuration", "info", "Settings changed."),
    events.GrowthUnavailable: _describe_error("size not known", "warning"),
    events.MaskUnmatched: _describe_error("mask", "warning"),
    events.MaintenanceFailed: _describe_error("maintenance failed", "warning"),
    events.MaintenanceRefused: _describe_error("maintenance skipped", "warning"),
    events.LogMaintained: lambda event: ("maintenance", "info", f"{event.summary} {event.reason}"),
    # Events of the daemon as a whole.
    events.DaemonStarted: _describe_field("start", "info", "Started; listens at {}.", "path"),
    events.ShutdownRequested: _describe_field("shutdown", "info", "Asked to stop by {}.", "reason"),
    events.ConfigReloaded: _describe_field("configuration", "info", "Reloaded {}.", "path"),
    events.ConfigRejected: _describe_error("configuration rejected", "error"),
    events.TableRemoved: _describe_removal,
    events.TableRejected: _describe_error("table rejected", "warning"),
    events.EngineStarted: lambda event: (
        "engine",
        "info",
        f"{event.engine.capitalize()} started in {event.duration_seconds:.1f} s.",
    ),
    events.WatcherUnavailable: _describe_error("watcher", "warning"),
    events.DiscoveryFailed: _describe_error("discovery", "warning"),
    events.NotificationsFailed: _describe_error("notifications", "warning"),
    events.NotificationsResumed: _describe_field("notifications", "info", "Resumed: {}.", "path"),
    events.NotificationsMissed: _describe_error("notifications", "warning"),
    events.StateAwaited: _describe_error("state", "warning"),
    events.StateTaken: _describe_field("state", "info", "Acquired {}.", "path"),
    events.StateLeaseLost: _describe_error("state", "error"),
    events.HistoryUnsaved: _describe_error("history not saved", "warning"),
}
