"""Passes events from where they happen to the handlers that log, count or show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailerd.telemetry.events import Event

Handler = Callable[[Event], None]
"""Takes every event, from any thread, quickly and without blocking."""


class Telemetry:
    """Passes events to handlers, in the order of the handlers.

    `emit` may be called from any thread. Without handlers it costs almost nothing, so components
    always emit their events.
    """

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._handlers = tuple(handlers)

    def emit(self, event: Event) -> None:
        """Emit an event to every handler."""
        for handler in self._handlers:
            handler(event)
