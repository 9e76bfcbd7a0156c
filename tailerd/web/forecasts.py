"""Forecasts of all tables for the overview, from their logs, while a page is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailerd.clock import Clock
from tailerd.errors import ExplorerBusyError
from tailerd.formats.growth import Growth

POLL_SECONDS = 5.0
_KEEP_SECONDS = 6 * 3600.0
_MONTH = "in 30 days"


class Forecasts:
    """Bytes by which tables grow in 30 days. It reads one log after another, again in six hours.

    Args:
        measured: Returns the names of the tables whose size is known.
        read: Reads how one grew; raises `TailerdError` if that is not known.
        is_viewed: Returns whether anybody looks; nothing is read before.
        on_change: Gets the name of a table with a new forecast.
    """

    def __init__(
        self,
        *,
        measured: Callable[[], list[str]],
        read: Callable[[str], Awaitable[Growth]],
        is_viewed: Callable[[], bool],
        on_change: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._measured = measured
        self._read = read
        self._is_viewed = is_viewed
        self._on_change = on_change
        self._clock = clock
        # By table: when its log was read, and the result.
        self._bytes: dict[str, tuple[float, int | None]] = {}

    def month_bytes(self, name: str) -> int | None:
        """Return a table's forecast; None if its log does not give one."""
        return self._bytes.get(name, (0.0, None))[1]

    def forget(self, name: str) -> None:
        """Read a table's log again: the table was removed or replaced."""
        self._bytes.pop(name, None)

    async def run(self) -> None:
        """Read forecasts until cancelled."""
        while True:
            await self._clock.sleep(POLL_SECONDS)
            if self._is_viewed():
                await self._read_missing()

    async def _read_missing(self) -> None:
        for name in self._measured():
            now = self._clock.monotonic()
            if name in self._bytes and now < self._bytes[name][0] + _KEEP_SECONDS:
                continue
            if not self._is_viewed():
                return
            try:
                found = await self._read(name)
            except ExplorerBusyError:
                # An operator's query goes first.
                return
            except Exception:  # noqa: BLE001 - whatever it is, the daemon goes on without a forecast
                self._bytes[name] = now, None
                continue
            later = found.forecast.get(_MONTH)
            self._bytes[name] = (
                now,
                None if later is None else later["size_bytes"] - found.size_bytes,
            )
            self._on_change(name)
