"""Events, each emitted once: they become log lines, metrics and the status page."""

from __future__ import annotations

from tailerd.telemetry.bus import Handler, Telemetry

__all__ = ["Handler", "Telemetry"]
