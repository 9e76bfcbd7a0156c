"""Evaluates the rules of `config/alerts.yaml` inside the daemon, for its page.

Names, severities, thresholds and times are the same; Prometheus evaluates its own samples.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailerd.clock import Clock
from tailerd.errors import MaintenanceProcessError
from tailerd.telemetry import events
from tailerd.telemetry.bus import Handlers

EVALUATE_SECONDS = 15.0
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_LATE_SECONDS = 600
_HEADROOM_SECONDS = 86_400
_DEBT_COMMITS, _DEBT_BYTES = 1000, 536_870_912
_MAX_TIMES = 100

_HANDLED = (
    events.CommitSkipped,
    events.DeadLettersStored,
    events.GapMet,
    events.GrowthUnavailable,
    events.LogMaintained,
    events.MaintenanceFailed,
    events.TableRemoved,
)

Table = Mapping[str, Any]
"""What `/status` shows of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule that holds.

    Attributes:
        table: Name of the table; empty for the daemon as a whole.
        is_pending: Whether it has not held for long enough to fire.
        for_seconds: How long it has held.
    """

    name: str
    severity: str
    table: str
    text: str
    is_pending: bool
    for_seconds: float


@dataclass(slots=True)
class _Memory:
    """Past events of a table that its status does not show: times in ms, oldest first."""

    gap_ms: int | None = None
    skipped_ms: int | None = None
    dead_letters_ms: int | None = None
    cleanup_failed_ms: int | None = None
    checkpoint_failed_ms: deque[int] = field(default_factory=lambda: deque(maxlen=_MAX_TIMES))
    checkpoint_ms: int | None = None
    lags: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MAX_TIMES))


_Holds = Callable[[Table, _Memory, int], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule about tables, or about the daemon as a whole.

    Attributes:
        minutes: How long it must hold before it fires.
        holds: Returns the alert's text while it holds; None for a rule about the daemon.
    """

    name: str
    severity: str
    minutes: int = 0
    holds: _Holds | None = None


def _is_recent(at_ms: int | None, now_ms: int, hours: int = 1) -> bool:
    return at_ms is not None and now_ms - at_ms <= hours * _HOUR_MS


def _check_failed(table: Table, _: _Memory, __: int) -> str | None:
    return "The pipeline has stopped with an error." if table["state"] == "failed" else None


def _retrying(table: Table, _: _Memory, __: int) -> str | None:
    return "The pipeline retries." if table["state"] == "retrying" else None


def _lag_growing(table: Table, memory: _Memory, now_ms: int) -> str | None:
    lag, versions = table["lag_seconds"], table["lag_versions"]
    if not lag or lag <= _LATE_SECONDS or versions is None:
        memory.lags.clear()
        return None
    memory.lags.append((now_ms, versions))
    before = next(count for at, count in memory.lags if now_ms - at <= 15 * _MINUTE_MS)
    return f"The lag is {lag:.0f} s and grows." if versions > before else None


def _no_progress(table: Table, _: _Memory, now_ms: int) -> str | None:
    saved = table["last_progress_ms"]
    is_moving = saved is not None and now_ms - saved <= 15 * _MINUTE_MS
    if not table["lag_versions"] or is_moving or table["state"] == "paused":
        return None
    return f"{table['lag_versions']} versions are to be delivered and none is."


def _headroom(table: Table, _: _Memory, __: int) -> str | None:
    left = table["retention_headroom_seconds"]
    if left is None or left >= _HEADROOM_SECONDS or not table["lag_versions"]:
        return None
    return f"The next version may be cleaned up in {max(0.0, left) / 3600:.1f} h."


def _gap(_: Table, memory: _Memory, now_ms: int) -> str | None:
    is_new = _is_recent(memory.gap_ms, now_ms)
    return "Changes are missing; delivery continued after them." if is_new else None


def _check_skipped(_: Table, memory: _Memory, now_ms: int) -> str | None:
    return "A damaged commit was skipped." if _is_recent(memory.skipped_ms, now_ms) else None


def _dead_letters(_: Table, memory: _Memory, now_ms: int) -> str | None:
    is_new = _is_recent(memory.dead_letters_ms, now_ms)
    return "Records went to the dead-letter topic or file." if is_new else None


def _check_paused(table: Table, _: _Memory, __: int) -> str | None:
    return "The pipeline is paused." if table["state"] == "paused" else None


def _overdue(table: Table, _: _Memory, __: int) -> str | None:
    size = table["size"] or {}
    commits = size.get("commits_since_checkpoint") or 0
    if commits <= _DEBT_COMMITS and (size.get("bytes_since_checkpoint") or 0) <= _DEBT_BYTES:
        return None
    return f"The log has {commits} commits since its last checkpoint."


def _maintenance_failing(_: Table, memory: _Memory, now_ms: int) -> str | None:
    failures = sum(_is_recent(at, now_ms) for at in memory.checkpoint_failed_ms)
    if failures <= 2 or _is_recent(memory.checkpoint_ms, now_ms):
        return None
    return "No checkpoint could be written for an hour."


def _check_refused(table: Table, _: _Memory, __: int) -> str | None:
    refused = (table["maintenance"] or {}).get("refused")
    return None if refused is None else str(refused["message"])


def _cleanup_held(_: Table, memory: _Memory, now_ms: int) -> str | None:
    is_held = _is_recent(memory.cleanup_failed_ms, now_ms, hours=6)
    return "Expired entries of the log are not deleted." if is_held else None


RULES: tuple[Rule, ...] = (
    Rule(name="TailerdPipelineFailed", severity="critical", minutes=1, holds=_check_failed),
    Rule(name="TailerdPipelineRetrying", severity="warning", minutes=15, holds=_retrying),
    Rule(name="TailerdLagGrowing", severity="warning", minutes=15, holds=_lag_growing),
    Rule(name="TailerdNoProgress", severity="critical", minutes=15, holds=_no_progress),
    Rule(name="TailerdRetentionHeadroomLow", severity="critical", minutes=5, holds=_headroom),
    Rule(name="TailerdGap", severity="critical", holds=_gap),
    Rule(name="TailerdCommitsSkipped", severity="critical", holds=_check_skipped),
    Rule(name="TailerdDeadLetters", severity="warning", holds=_dead_letters),
    Rule(name="TailerdPausedForLong", severity="warning", minutes=720, holds=_check_paused),
    Rule(name="TailerdCheckpointOverdue", severity="warning", minutes=30, holds=_overdue),
    Rule(
        name="TailerdMaintenanceFailing", severity="warning", minutes=15, holds=_maintenance_failing
    ),
    Rule(name="TailerdMaintenanceRefused", severity="warning", minutes=15, holds=_check_refused),
    Rule(name="TailerdCleanupHeld", severity="warning", minutes=360, holds=_cleanup_held),
    Rule(name="TailerdMaintenanceJobsKilled", severity="warning"),
    Rule(name="TailerdNotificationsFailing", severity="warning", minutes=15),
    Rule(name="TailerdDiscoveryFailing", severity="warning", minutes=30),
)
_PARTS = {
    "TailerdNotificationsFailing": "notifications",
    "TailerdDiscoveryFailing": "discovery",
}


class AlertBoard:
    """Tracks since when each rule holds. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._memories: dict[str, _Memory] = {}
        self._killed_ms: deque[int] = deque(maxlen=_MAX_TIMES)
        self._since: dict[tuple[str, str], tuple[int, str]] = {}

    def handlers(self) -> Handlers:
        """Return the handler of each class of events that has a rule."""
        return dict.fromkeys(_HANDLED, self.handle)

    def handle(self, event: events.Event) -> None:
        """Handle an event; those without a rule are ignored."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if isinstance(event, events.MaintenanceFailed | events.GrowthUnavailable) and (
                event.error_code == MaintenanceProcessError.code
            ):
                self._killed_ms.append(now_ms)
            match event:
                case events.GapMet():
                    self._get_memory(event.table).gap_ms = now_ms
                case events.CommitSkipped():
                    self._get_memory(event.table).skipped_ms = now_ms
                case events.DeadLettersStored():
                    self._get_memory(event.table).dead_letters_ms = now_ms
                case events.LogMaintained(job="checkpoint"):
                    self._get_memory(event.table).checkpoint_ms = now_ms
                case events.MaintenanceFailed(job="checkpoint"):
                    self._get_memory(event.table).checkpoint_failed_ms.append(now_ms)
                case events.MaintenanceFailed(job="cleanup"):
                    self._get_memory(event.table).cleanup_failed_ms = now_ms
                case events.TableRemoved():
                    self._memories.pop(event.table, None)
                case _:
                    pass

    def _get_memory(self, table: str) -> _Memory:
        return self._memories.setdefault(table, _Memory())

    def evaluate(self, tables: Iterable[Table], problems: Iterable[Mapping[str, Any]]) -> None:
        """Evaluate all rules; to be called every `EVALUATE_SECONDS`."""
        now_ms, found = self._clock.now_ms(), list[tuple[tuple[str, str], str]]()
        # Without the lock while a table's values are made: events of the loop would wait for them.
        for table in tables:
            with self._lock:
                found += self._check_table(table, now_ms)
        with self._lock:
            before = self._since
            found += self._check_daemon(list(problems), now_ms)
            self._since = {
                key: (before[key][0] if key in before else now_ms, text) for key, text in found
            }

    def _check_table(self, table: Table, now_ms: int) -> Iterator[tuple[tuple[str, str], str]]:
        memory = self._get_memory(table["table"])
        for rule in RULES:
            text = None if rule.holds is None else rule.holds(table, memory, now_ms)
            if text is not None:
                yield (rule.name, table["table"]), text

    def _check_daemon(
        self, problems: list[Mapping[str, Any]], now_ms: int
    ) -> Iterator[tuple[tuple[str, str], str]]:
        killed = sum(_is_recent(at, now_ms) for at in self._killed_ms)
        if killed > 3:
            text = f"{killed} maintenance jobs have been killed within an hour."
            yield ("TailerdMaintenanceJobsKilled", ""), text
        for name, part in _PARTS.items():
            messages = [each["error"]["message"] for each in problems if each["part"] == part]
            if messages:
                yield (name, ""), messages[0]

    def alerts(self) -> list[Alert]:
        """Return the rules that hold: firing ones first, critical before others."""
        now_ms = self._clock.now_ms()
        with self._lock:
            since = dict(self._since)
        rules = {rule.name: rule for rule in RULES}
        found = [
            Alert(
                name=name,
                severity=rules[name].severity,
                table=table,
                text=text,
                is_pending=now_ms - began < rules[name].minutes * _MINUTE_MS,
                for_seconds=(now_ms - began) / 1000,
            )
            for (name, table), (began, text) in since.items()
        ]
        return sorted(found, key=lambda a: (a.is_pending, a.severity, a.name, a.table))
