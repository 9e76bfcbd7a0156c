"""Polling, the fallback for every other watcher: an event for every folder at an interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from tailerd.clock import Clock
from tailerd.watchers.base import StorageEvent

CLOSE_SECONDS = 2.0
"""Interval of a folder without another reliable watcher."""
WIDE_SECONDS = 30.0
"""Interval of a folder that a file-event watcher covers, in case it misses an event."""
WIDE_PER_SECOND = 8
"""Most such events a second. Each costs half a millisecond; of more folders the interval is
longer, so that a thousand tables at rest cost next to nothing."""
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
        close = self._spread(round(self._pace.close_seconds / TICK_SECONDS), step=1)
        count = len(self._folders)
        wide_seconds = max(self._pace.wide_seconds, count / WIDE_PER_SECOND)
        wide_ticks = math.ceil(wide_seconds / TICK_SECONDS)
        wide = self._spread(wide_ticks, step=wide_ticks / max(count, 1))
        for tick in itertools.count():
            await self._clock.sleep(TICK_SECONDS)
            for folder in close[tick % len(close)]:
                if not self._is_covered(folder):
                    yield StorageEvent(folder)
            for folder in wide[tick % len(wide)]:
                if self._is_covered(folder):
                    yield StorageEvent(folder)

    def _spread(self, ticks: int, step: float) -> list[list[str]]:
        """Return the folders of each tick of an interval; each comes `step` ticks after another."""
        found: list[list[str]] = [[] for _ in range(ticks)]
        for index, folder in enumerate(self._folders):
            found[int(index * step) % ticks].append(folder)
        return found
