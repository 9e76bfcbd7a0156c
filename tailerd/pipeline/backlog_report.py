"""Reports the backlog of a pipeline whenever it changes."""

from __future__ import annotations

from tailerd.changefeed.offset import Offset, whole_before
from tailerd.formats.base import Backlog, ChangeSource
from tailerd.telemetry import Telemetry, events


class BacklogReport:
    """Measures the backlog of one table's offset.

    Args:
        table, engine: Of the pipeline.
        is_idle: Whether the pipeline is paused or failed.
    """

    def __init__(
        self,
        table: str,
        engine: str,
        source: ChangeSource,
        telemetry: Telemetry,
        *,
        is_idle: bool = False,
    ) -> None:
        self._table = table
        self._engine = engine
        self._source = source
        self._telemetry = telemetry
        self._is_idle = is_idle
        self._last: events.BacklogMeasured | None = None

    async def measure(self, offset: Offset, first: Offset | None) -> None:
        """Measure the backlog after an offset and report it.

        Args:
            first: The first offset of the pipeline, or the last one that a gap or reset led to.
        """
        self._emit(offset, first, await self._source.backlog(offset))

    def emit_idle(self, offset: Offset, first: Offset | None) -> None:
        """Report that nothing comes after an offset: the head is the version before it."""
        head = offset.last_version(self._source)
        none = Backlog(
            head_version=head,
            versions=0,
            head_timestamp_ms=0,
            oldest_undelivered_timestamp_ms=None,
        )
        self._emit(offset, first, none)

    def _emit(self, offset: Offset, first: Offset | None, backlog: Backlog) -> None:
        delivered = whole_before(self._source, offset)
        if not backlog.versions:
            delivered = backlog.head_version
        if delivered is not None and first is not None and delivered < first.version:
            # Nothing is delivered since the offset was chosen.
            delivered = None
        measured = events.BacklogMeasured(
            table=self._table,
            engine=self._engine,
            version=offset.version,
            head_version=backlog.head_version,
            versions=backlog.versions,
            oldest_timestamp_ms=backlog.oldest_undelivered_timestamp_ms,
            retention_seconds=backlog.retention_seconds,
            delivered_version=delivered,
            is_idle=self._is_idle,
        )
        if measured != self._last:
            self._last = measured
            self._telemetry.emit(measured)
