"""Current problems of the daemon that concern no single table: notifications, discovery, state."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from tailerd.clock import Clock
from tailerd.telemetry import events

HANDLED = (
    events.NotificationsFailed,
    events.NotificationsResumed,
    events.NotificationsMissed,
    events.DiscoveryFailed,
    events.DiscoveryResumed,
    events.StateAwaited,
    events.StateTaken,
    events.StateLeaseLost,
    events.ProblemEnded,
)

_ProblemEvent = (
    events.NotificationsFailed
    | events.NotificationsMissed
    | events.DiscoveryFailed
    | events.StateAwaited
    | events.StateLeaseLost
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem, and since when it lasts.

    Attributes:
        part: Of the daemon: notifications, discovery, state.
        name: Of its section, if it has one.
        path: The queue or pattern that is not available.
        attempt: Number of failed attempts in a row.
        is_blocking: Whether the daemon is not ready as long as it lasts.
    """

    part: str
    name: str
    path: str
    error_code: str
    error: str
    attempt: int
    since_ms: int
    is_blocking: bool = False

    def to_json(self) -> dict[str, object]:
        """Return what `/status` shows."""
        return {
            "part": self.part,
            "name": self.name or None,
            "path": self.path,
            "error": {"code": self.error_code, "message": self.error},
            "attempt": self.attempt,
            "since_ms": self.since_ms,
        }


class ProblemBoard:
    """Tracks the current problems from events. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._problems: dict[tuple[str, str], Problem] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All current problems, oldest first."""
        with self._lock:
            return tuple(self._problems.values())

    def counts(self) -> Counter[tuple[str, str]]:
        """Return how many there are of each (part, error code)."""
        return Counter((each.part, each.error_code) for each in self.problems)

    def handle(self, event: events.Event) -> None:
        """Handle an event; others than `HANDLED` are ignored."""
        with self._lock:
            match event:
                case events.NotificationsFailed() | events.NotificationsMissed():
                    self._note("notifications", event)
                case events.DiscoveryFailed():
                    is_blocking = not event.is_known
                    self._note("discovery", event, event.pattern, is_blocking=is_blocking)
                case events.NotificationsResumed():
                    self._problems.pop(("notifications", event.path), None)
                case events.DiscoveryResumed():
                    self._problems.pop(("discovery", event.path), None)
                case events.StateAwaited() | events.StateLeaseLost():
                    self._note("state", event, is_blocking=True)
                case events.StateTaken():
                    self._problems.pop(("state", event.path), None)
                case events.ProblemEnded():
                    self._problems.pop((event.part, event.path), None)
                case _:
                    pass

    def _note(
        self,
        part: str,
        event: _ProblemEvent,
        name: str = "",
        *,
        is_blocking: bool = False,
    ) -> None:
        before = self._problems.get((part, event.path))
        self._problems[part, event.path] = Problem(
            part=part,
            name=name,
            path=event.path,
            error_code=event.error_code,
            error=event.error,
            attempt=event.attempt,
            since_ms=self._clock.now_ms() if before is None else before.since_ms,
            is_blocking=is_blocking,
        )
