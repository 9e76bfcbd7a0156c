"""The size of a table that no pipeline delivers: nobody else looks at its files."""

from __future__ import annotations

from dataclasses import asdict

from tailerd.clock import Clock
from tailerd.errors import TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.stats.table_growth import TableGrowth
from tailerd.telemetry import Telemetry, events

RETRY_SECONDS = 60.0
MEASURE = "measure"
"""What the look at a table's size is called among its jobs."""


class MeasuredTable:
    """Measures one table. Used by one task.

    Args:
        reader: The table's log, made `with_rows`.
    """

    def __init__(self, name: str, reader: LogReader, *, telemetry: Telemetry, clock: Clock) -> None:
        self._name = name
        self._reader = reader
        self._telemetry = telemetry
        self._clock = clock
        self._growth: TableGrowth | None = None
        self._not_before = float("-inf")

    async def look(self, table_id: str, version: int) -> float | None:
        """Follow the table to its head and tell its size, or why it is not known.

        Args:
            table_id: Whose size is wanted; another table of this place is opened anew.
            version: The newest version that is known of.

        Returns:
            Seconds until another look is worth it although nothing happens; None for never.
        """
        now = self._clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        # A table whose files are too many for this process is to be blamed for its end.
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=MEASURE))
        try:
            growth = await self._followed(table_id, version, now)
        except TailerdError as error:
            self._growth, self._not_before = None, now + RETRY_SECONDS
            self._telemetry.emit(
                events.GrowthUnavailable(table=self._name, error_code=error.code, hint=str(error))
            )
            return RETRY_SECONDS
        self._telemetry.emit(
            events.TableMeasured(
                table=self._name, **asdict(growth.size()), pending_files=None, pending_bytes=None
            )
        )
        return growth.due_in(now)

    async def _followed(self, table_id: str, version: int, now: float) -> TableGrowth:
        growth = self._growth
        if growth is None or growth.table_id != table_id or growth.version > version:
            self._growth = growth = TableGrowth(self._reader)
            await growth.open(version + 1, now)
        while await growth.advance(now):
            pass
        # Nothing of it is to be delivered.
        growth.pending(growth.version + 1)
        return growth
