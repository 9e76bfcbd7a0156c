"""Passes events from where they happen to the handlers that log, count or show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tailerd.telemetry.events import Event

Handler = Callable[[Event], None]
"""Takes every event, from any thread, quickly and without blocking."""
Handlers = Mapping[type, Callable[[Any], None]]
"""The handler of each class of events, where others are ignored."""


class Telemetry:
    """Passes events to handlers, in the order of the handlers.

    `emit` may be called from any thread. Without handlers it costs almost nothing, so components
    always emit their events.
    """

    def __init__(self, handlers: Iterable[Handler | Handlers] = ()) -> None:
        self._handlers = tuple(handlers)
        self._by_class: dict[type, tuple[Callable[[Any], None], ...]] = {}

    def emit(self, event: Event) -> None:
        """Emit an event to the handlers of its class."""
        kind = type(event)
        if kind not in self._by_class:
            found = (
                each.get(kind) if isinstance(each, Mapping) else each for each in self._handlers
            )
            self._by_class[kind] = tuple(each for each in found if each is not None)
        for handler in self._by_class[kind]:
            handler(event)
