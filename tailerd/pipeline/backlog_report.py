"""Reports the backlog of a pipeline whenever it changes."""

from __future__ import annotations

from tailerd.changefeed.offset import Offset, whole_before
from tailerd.formats.base import ChangeSource
from tailerd.telemetry import Telemetry, events


class BacklogReport:
    """Measures the backlog of one table's offset."""

    def __init__(self, table: str, engine: str, source: ChangeSource, telemetry: Telemetry) -> None:
        """Initialize; `table` is the configured name."""
        self._table = table
        self._engine = engine
        self._source = source
        self._telemetry = telemetry
        self._last: events.BacklogMeasured | None = None

    async def measure(self, offset: Offset) -> None:
        """Measure the backlog after an offset and report it."""
        backlog = await self._source.backlog(offset)
        self._emit(
            events.BacklogMeasured(
                table=self._table,
                engine=self._engine,
                version=offset.version,
                head_version=backlog.head_version,
                versions=backlog.versions,
                oldest_timestamp_ms=backlog.oldest_undelivered_timestamp_ms,
                retention_seconds=backlog.retention_seconds,
                delivered_version=whole_before(self._source, offset),
            )
        )

    def emit_idle(self, offset: Offset) -> None:
        """Report that nothing comes after an offset: the head is the version before it."""
        self._emit(
            events.BacklogMeasured(
                table=self._table,
                engine=self._engine,
                version=offset.version,
                head_version=offset.last_version(self._source),
                versions=0,
                oldest_timestamp_ms=None,
                delivered_version=whole_before(self._source, offset),
            )
        )

    def _emit(self, backlog: events.BacklogMeasured) -> None:
        if backlog != self._last:
            self._last = backlog
            self._telemetry.emit(backlog)
