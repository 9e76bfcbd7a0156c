"""Polling, the fallback for every other watcher: an event for every folder at an interval."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from tailerd.clock import Clock
from tailerd.watchers.base import StorageEvent

CLOSE_SECONDS = 2.0
"""Interval of a folder without another reliable watcher."""
WIDE_SECONDS = 30.0
"""Interval of a folder that a file-event watcher covers, in case it misses an event."""
TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals of folders without another reliable watcher (close), and with one (wide)."""

    close_seconds: float = CLOSE_SECONDS
    wide_seconds: float = WIDE_SECONDS


class PollWatcher:
    """Yields events at a fixed interval, independent of the storage."""

    def __init__(self, folders: Sequence[str], *, interval_seconds: float, clock: Clock) -> None:
        self._folders = tuple(folders)
        self._interval_seconds = interval_seconds
        self._clock = clock

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield one event for each folder, an interval after the last."""
        while True:
            await self._clock.sleep(self._interval_seconds)
            for folder in self._folders:
                yield StorageEvent(folder)


class FloorWatcher:
    """Yields an event for each folder as often as needed: rarely if another watcher covers it.

    Events are spread over the interval: a thousand at once would delay deliveries.
    """

    def __init__(
        self,
        folders: Sequence[str],
        *,
        is_covered: Callable[[str], bool],
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        """Initialize; `is_covered` is called for a folder whenever its event may be due."""
        self._pace = pace or Pace()
        self._folders = tuple(folders)
        self._is_covered = is_covered
        self._clock = clock

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield events, each folder's at the interval of the pace."""
        close = round(self._pace.close_seconds / TICK_SECONDS)
        wide = round(self._pace.wide_seconds / TICK_SECONDS)
        for tick in itertools.count():
            await self._clock.sleep(TICK_SECONDS)
            for index, folder in enumerate(self._folders):
                # Each folder has its own tick; the ticks are spread evenly over the interval.
                is_wide = (tick + index * wide // len(self._folders)) % wide == 0
                is_close = (tick + index) % close == 0
                if (is_wide or is_close) and (is_wide if self._is_covered(folder) else is_close):
                    yield StorageEvent(folder)
