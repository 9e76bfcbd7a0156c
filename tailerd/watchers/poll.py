"""The floor under every other watcher: a hint for every folder at a fixed interval."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from tailerd.clock import Clock
from tailerd.watchers.base import StorageEvent


class PollWatcher:
    """Hints regularly, whatever the storage says."""

    def __init__(self, folders: Sequence[str], *, interval_seconds: float, clock: Clock) -> None:
        self._folders = tuple(folders)
        self._interval_seconds = interval_seconds
        self._clock = clock

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield one hint for each folder, an interval after the last."""
        while True:
            await self._clock.sleep(self._interval_seconds)
            for folder in self._folders:
                yield StorageEvent(folder)
