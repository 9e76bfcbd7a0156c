"""Measures the size of a table that no pipeline delivers, and that is not measured otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.statistics import TableStatistics
from tailerd.telemetry import Telemetry, events

RETRY_SECONDS = 60.0
MEASURE = "measure"
"""Name of the measurement of a table's size among its jobs."""


class MeasuredTable:
    """Measures one table. Used by one task.

    Args:
        open_statistics: Creates the table's statistics.
    """

    def __init__(
        self,
        name: str,
        open_statistics: Callable[[], TableStatistics],
        *,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._name = name
        self._open_statistics = open_statistics
        self._telemetry = telemetry
        self._clock = clock
        self._statistics: TableStatistics | None = None
        self._not_before = float("-inf")

    async def look(self, table_id: str, version: int) -> float | None:
        """Follow the table to its head and report its size, or why it is not known.

        Args:
            table_id: Identity of the table; a replaced table is opened again.
            version: The newest known version.

        Returns:
            Seconds until the next call is useful without a change; None for never.
        """
        now = self._clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        # A table with too many files for this process can be identified as the cause of its death.
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=MEASURE))
        try:
            statistics = await self._followed(table_id, version, now)
        except TailerdError as error:
            self._statistics, self._not_before = None, now + RETRY_SECONDS
            self._telemetry.emit(
                events.GrowthUnavailable(table=self._name, error_code=error.code, error=str(error))
            )
            return RETRY_SECONDS
        self._telemetry.emit(
            events.TableMeasured(
                table=self._name,
                **asdict(statistics.size()),
                pending_files=None,
                pending_bytes=None,
            )
        )
        return statistics.due_in(now)

    async def _followed(self, table_id: str, version: int, now: float) -> TableStatistics:
        known = self._statistics
        if known is None or known.table_id != table_id or known.version > version:
            known = self._statistics = self._open_statistics()
            await known.open(now, first=None, next_up=None)
        while await known.advance(now):
            # No pipeline needs them, and there may be many.
            known.take_commits()
        known.take_commits()
        known.pending(None)
        return known
