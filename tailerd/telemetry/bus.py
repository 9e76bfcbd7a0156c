"""The way of an event from where it happens to those who tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailerd.telemetry.events import Event

Handler = Callable[[Event], None]
"""Takes every event, from any thread, quickly and without waiting."""


class Telemetry:
    """Hands events to handlers, in the order the handlers were given.

    `emit` may be called from any thread. Without handlers it costs next to nothing, so parts take
    a `Telemetry` and never ask whether somebody listens.
    """

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._handlers = tuple(handlers)

    def emit(self, event: Event) -> None:
        """Emit an event to every handler."""
        for handler in self._handlers:
            handler(event)
