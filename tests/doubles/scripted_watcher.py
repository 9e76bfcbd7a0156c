"""A watcher that gives the hints the test gives it: lost, doubled, late or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from tailerd.watchers.base import StorageEvent


class ScriptedWatcher:
    """Yields what `hint` was told, in order, to every open `events()`; ends only when closed.

    Attributes:
        opened, closed: How many generators were started and how many have ended.
    """

    def __init__(self, script: Sequence[str] = ()) -> None:
        """Start with hints for the folders of `script`; each generator gets them all."""
        self._script = tuple(script)
        self._queues: list[asyncio.Queue[str]] = []
        self.opened = 0
        self.closed = 0

    def hint(self, folder: str, *, times: int = 1) -> None:
        """Say that something may have happened at `folder`; who listens later does not hear."""
        for queue in self._queues:
            for _ in range(times):
                queue.put_nowait(folder)

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        for folder in self._script:
            queue.put_nowait(folder)
        self._queues.append(queue)
        self.opened += 1
        try:
            while True:
                yield StorageEvent(await queue.get())
        finally:
            self._queues.remove(queue)
            self.closed += 1
