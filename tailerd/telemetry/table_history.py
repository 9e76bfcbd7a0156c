"""The history of one table: bounded lists that drop their oldest, ready for JSON. For one thread.

Restored data was written by an earlier process, and may be damaged: its shape is checked.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tailerd.telemetry import events
from tailerd.telemetry.freshness import FreshnessDays
from tailerd.telemetry.timeline import Timeline

Record = dict[str, Any]

_COMMIT_BYTES = 900
_POINT_BYTES = 350
_LONG_RECORDS = 20
_EVENTS_FOR_EACH_OTHER = 5
_OTHERS_BYTES = 3 * 1500 + _EVENTS_FOR_EACH_OTHER * 500
"""One record of each of the three long lists, and their share of events."""
_LONGEST_TEXT = 600
_UNLISTED_JOBS = ("checksum",)
"""Jobs that are no news: they run with each commit."""
_FIRST_WIDTH_MS = 10_000
MAX_COLUMNS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many records of each kind a table may have."""

    commits: int
    points: int
    others: int

    @classmethod
    def within(cls, share_bytes: int) -> Self:
        """Return the limits that fit into about `share_bytes`, but never less than a minimum."""
        return cls(
            commits=min(200, max(10, share_bytes * 5 // 10 // _COMMIT_BYTES)),
            points=min(288, max(12, share_bytes * 3 // 10 // _POINT_BYTES)),
            others=min(_LONG_RECORDS, max(3, share_bytes * 2 // 10 // _OTHERS_BYTES)),
        )


class TableHistory:
    """Commits, growth, schema, maintenance and errors of one table.

    Attributes:
        freshness: How much of the time it was fresh.
    """

    def __init__(self) -> None:
        self._limits = Limits.within(1 << 20)
        self._commits: deque[Record] = deque()
        self._points: list[list[int | None]] = []
        self._width_ms = _FIRST_WIDTH_MS
        self._schema: Record | None = None
        self._schema_changes: deque[Record] = deque()
        self._jobs: deque[Record] = deque()
        self._errors: deque[Record] = deque()
        self.freshness = FreshnessDays()
        self._events = Timeline(self._limits.others * _EVENTS_FOR_EACH_OTHER)

    def limit(self, limits: Limits) -> None:
        """Hold no more than this from now on."""
        self._limits = limits
        self._events.most = limits.others * _EVENTS_FOR_EACH_OTHER
        self._trim()

    def take(self, event: events.Event, now_ms: int) -> bool:
        """Handle an event; return whether it changed the history."""
        is_news = not (isinstance(event, events.LogMaintained) and event.job in _UNLISTED_JOBS)
        is_listed = is_news and self._events.take(event, now_ms)
        return self._fold(event, now_ms) or is_listed

    def _fold(self, event: events.Event, now_ms: int) -> bool:
        match event:
            case events.CommitObserved():
                self._observe(event)
            case events.CommitsDelivered():
                return self._deliver(event.details, now_ms)
            case events.OffsetSaved():
                return self._mark_delivered(event.version, now_ms)
            case events.TableMeasured():
                self._measure(event, now_ms)
            case events.SchemaObserved():
                self._change_schema(event, now_ms)
            case events.LogMaintained() | events.MaintenanceFailed():
                self._jobs.append(_job(event, now_ms))
            case events.RetryScheduled() | events.PipelineFailed() | events.MaintenanceRefused():
                self._errors.append(_error(event, now_ms))
            case _:
                return False
        self._trim()
        return True

    def _observe(self, event: events.CommitObserved) -> None:
        known = self._update_commit(event)
        if known is not None:
            known.update(rows_added=event.rows_added, rows_removed=event.rows_removed)

    def _deliver(self, commits: Sequence[events.DeliveredCommit], now_ms: int) -> bool:
        """Record delivered commits from their plan, whether they were observed before or not."""
        for commit in commits[-self._limits.commits :]:
            known = self._update_commit(commit)
            if known is not None:
                known["mode"], known["delivered_ms"] = commit.mode, now_ms
        self._trim()
        return bool(commits)

    def _update_commit(
        self, event: events.CommitObserved | events.DeliveredCommit
    ) -> Record | None:
        """Return the updated record of a commit; None for one older than all records."""
        known = self._commit(event.version)
        if known is None:
            if self._commits and event.version < self._commits[-1]["version"]:
                # The table was replaced, or is read again from an earlier version.
                return None
            known = {
                "version": event.version,
                "mode": None,
                "delivered_ms": None,
                "rows_added": None,
                "rows_removed": None,
            }
            self._commits.append(known)
        known.update(
            timestamp_ms=event.timestamp_ms,
            operation=event.operation[:100],
            files_added=event.files_added,
            bytes_added=event.bytes_added,
            files_removed=event.files_removed,
            bytes_removed=event.bytes_removed,
        )
        return known

    def _mark_delivered(self, next_version: int, now_ms: int) -> bool:
        is_changed = False
        for commit in reversed(self._commits):
            if commit["version"] < next_version:
                if commit.get("delivered_ms") is not None:
                    break
                commit["delivered_ms"] = now_ms
                is_changed = True
        return is_changed

    def _commit(self, version: int) -> Record | None:
        return next((c for c in reversed(self._commits) if c["version"] == version), None)

    def _measure(self, event: events.TableMeasured, now_ms: int) -> None:
        bucket = now_ms - now_ms % self._width_ms
        if self._points and (self._points[-1][0] or 0) >= bucket:
            self._points.pop()
        self._points.append([bucket, event.files, event.bytes, event.rows, event.deletion_vectors])

    def _change_schema(self, event: events.SchemaObserved, now_ms: int) -> None:
        columns = [[name[:300], kind[:_LONGEST_TEXT]] for name, kind in event.columns]
        self._note_schema(
            {
                "version": event.version,
                "timestamp_ms": event.timestamp_ms,
                "columns": columns[:MAX_COLUMNS],
                "column_count": len(columns),
            },
            now_ms,
        )

    def _note_schema(self, found: Record, now_ms: int) -> None:
        """Record the newest schema, and its differences from the previous one."""
        before, self._schema = self._schema, found
        if before is None or before["columns"] == found["columns"]:
            return
        changes = _differences(before["columns"], found["columns"])
        self._schema_changes.append(
            {
                "version": found["version"],
                "timestamp_ms": found["timestamp_ms"],
                "changes": changes[:20],
                "change_count": len(changes),
            }
        )
        self._events.add("schema", "info", "; ".join(changes[:5]), found["version"], now_ms)

    def _trim(self) -> None:
        self._events.trim()
        while len(self._commits) > self._limits.commits:
            self._commits.popleft()
        for records in (self._schema_changes, self._errors):
            while len(records) > self._limits.others:
                records.popleft()
        while len(self._jobs) > self._limits.others:
            # Checksums are written with each commit, and would displace everything else.
            kinds = Counter(job.get("job") for job in self._jobs)
            often = kinds.most_common(1)[0][0]
            self._jobs.remove(next(job for job in self._jobs if job.get("job") == often))
        while len(self._points) > self._limits.points:
            # Half as many points, twice as far apart; the newest stays.
            self._width_ms *= 2
            self._points = self._points[-1::-2][::-1]

    def to_json(self) -> Record:
        """Return everything, oldest first."""
        return {
            # Copies: the caller serializes them while further events arrive.
            "commits": [dict(commit) for commit in self._commits],
            "growth": list(self._points),
            "growth_width_ms": self._width_ms,
            "schema": self._schema,
            "schema_changes": list(self._schema_changes),
            "jobs": list(self._jobs),
            "errors": list(self._errors),
            "events": self._events.to_json(),
            "freshness": self.freshness.to_json(),
        }

    def restore(self, saved: object, now_ms: int) -> bool:
        """Restore the output of `to_json`; False, and nothing restored, if its shape is invalid.

        Records made meanwhile are newer: they stay, after the restored ones.
        """
        if not _is_history(saved):
            return False
        assert isinstance(saved, dict)
        first = self._commits[0]["version"] if self._commits else None
        older = sorted(saved["commits"], key=lambda commit: commit["version"])
        kept = [each for each in older if first is None or each["version"] < first]
        self._commits.extendleft(reversed(kept))
        self._restore_growth(saved)
        self._schema_changes.extendleft(reversed(saved["schema_changes"]))
        self._jobs.extendleft(reversed(saved["jobs"]))
        self._errors.extendleft(reversed(saved["errors"]))
        self._events.restore(saved.get("events"))
        self.freshness.restore(saved.get("freshness"))
        if saved["schema"] is not None:
            found, self._schema = self._schema, saved["schema"]
            if found is not None:
                self._note_schema(found, now_ms)
        self._trim()
        return True

    def _restore_growth(self, saved: Record) -> None:
        points = self._points
        self._width_ms = max(_FIRST_WIDTH_MS, saved["growth_width_ms"], self._width_ms)
        older = [each for each in saved["growth"] if not points or each[0] < (points[0][0] or 0)]
        self._points = [*older, *points]


def _job(event: events.LogMaintained | events.MaintenanceFailed, now_ms: int) -> Record:
    done = event if isinstance(event, events.LogMaintained) else None
    message = (
        f"{event.summary} {event.reason}"
        if isinstance(event, events.LogMaintained)
        else event.error
    )
    return {
        "job": event.job,
        "ended_ms": now_ms,
        "result": "failed" if done is None else done.result,
        "version": None if done is None else done.version,
        "files": None if done is None else done.files,
        "bytes": None if done is None else done.bytes,
        "duration_seconds": round(event.duration_seconds, 6),
        "message": message[:_LONGEST_TEXT],
    }


def _error(
    event: events.RetryScheduled | events.PipelineFailed | events.MaintenanceRefused, now_ms: int
) -> Record:
    return {"at_ms": now_ms, "code": event.error_code, "message": event.error[:_LONGEST_TEXT]}


def _differences(before: list[list[str]], after: list[list[str]]) -> list[str]:
    """Return what changed between two lists of (column, type), in sentences."""
    old = {name: kind for name, kind, *_ in before}
    new = {name: kind for name, kind, *_ in after}
    return [
        *(f"added {name} {kind}" for name, kind in after if name not in old),
        *(f"dropped {name} {kind}" for name, kind in before if name not in new),
        *(f"{n}: {old[n]} became {k}" for n, k in after if n in old and old[n] != k),
    ] or ["the order of the columns changed"]


def _is_history(saved: object) -> bool:
    if not isinstance(saved, dict):
        return False
    lists = ("commits", "schema_changes", "jobs", "errors")
    return (
        all(_are_records(saved.get(name)) for name in lists)
        and all(type(commit.get("version")) is int for commit in saved["commits"])
        and type(saved.get("growth_width_ms")) is int
        and (saved.get("schema") is None or _is_schema(saved["schema"]))
        and isinstance(saved.get("growth"), list)
        and all(_is_point(point) for point in saved["growth"])
    )


def _are_records(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _is_schema(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("columns"), list):
        return False
    return all(
        isinstance(column, list) and len(column) == 2 and all(isinstance(x, str) for x in column)
        for column in value["columns"]
    )


def _is_point(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 5
        and type(value[0]) is int
        and all(each is None or type(each) is int for each in value)
    )
