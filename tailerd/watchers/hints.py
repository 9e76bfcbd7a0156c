"""Several watchers, many waiters: each waiter wakes when its own folder may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from tailerd.watchers.base import Watcher


class Hint:
    """One waiter's bell. A ring is kept until somebody waits; rings in a row are one."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits."""
        self._rung.set()

    async def wait(self) -> None:
        """Wait for a ring."""
        await self._rung.wait()
        self._rung.clear()


class HintBoard:
    """Distributes the events of watchers to the bells of folders."""

    def __init__(self) -> None:
        self._bells: dict[str, list[Hint]] = {}

    def subscribe(self, folder: str, bell: Hint | None = None) -> Hint:
        """Return a bell for `folder`, which is spelled as the watchers were given it.

        Args:
            bell: One of the caller's; without it, a new one.
        """
        bell = Hint() if bell is None else bell
        self._bells.setdefault(folder, []).append(bell)
        return bell

    def unsubscribe(self, folder: str, bell: Hint) -> None:
        """Ring a bell no more."""
        bells = self._bells.get(folder, [])
        if bell in bells:
            bells.remove(bell)
        if not bells:
            self._bells.pop(folder, None)

    async def run(self, watchers: Sequence[Watcher]) -> None:
        """Listen to all watchers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watcher in watchers:
                group.create_task(self._listen(watcher))

    async def _listen(self, watcher: Watcher) -> None:
        async with aclosing(watcher.events()) as hints:
            async for event in hints:
                for bell in self._bells.get(event.folder, ()):
                    bell.ring()
