"""Several watchers, many waiters: each waiter wakes when its own folder may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from tailerd.watchers.base import HearsLooks, Watcher

_MOST_UNSEEN = 1000
"""Events a wakeup keeps for somebody who does not look; the oldest of more count as seen: whoever
begins to look again, sees all there is."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a waiter had heard when it began to look.

    Attributes:
        is_woken: Whether it was called since its last look and did not wait for that.
        version: The highest version it was told of; None when of none.
        count: Events that are seen by this look.
    """

    is_woken: bool
    version: int | None
    count: int


class Wakeup:
    """One waiter's wakeup. A ring is kept until somebody waits or looks; rings in a row are one.

    Attributes:
        on_looked: Hears of each look whether it found commits that nobody had told of.
    """

    def __init__(self) -> None:
        """Begin silent."""
        self.on_looked: Callable[[bool], None] | None = None
        self._had_news = True
        self._rung = asyncio.Event()
        self._version: int | None = None
        self._unseen: list[Callable[[], None]] = []

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits."""
        self._rung.set()

    def tell(self, version: int | None, seen: Callable[[], None]) -> None:
        """Wake the waiter, and call `seen` when it has looked."""
        if version is not None:
            self._version = version if self._version is None else max(version, self._version)
        self._unseen.append(seen)
        if len(self._unseen) > _MOST_UNSEEN:
            self._unseen.pop(0)()
        self.ring()

    async def wait(self) -> None:
        """Wait for a ring."""
        await self._rung.wait()
        self._rung.clear()

    def begin_poll(self) -> Look:
        """Note that the waiter looks now: rings up to here need not wake it again."""
        look = Look(self._rung.is_set(), self._version, len(self._unseen))
        self._rung.clear()
        self._version = None
        return look

    def end_poll(self, look: Look, *, is_news: bool = False) -> None:
        """Note that the waiter has looked. A look that failed is not ended but begun again.

        Args:
            is_news: Whether it found commits.
        """
        # After news there may be more at once, of which word is still on its way.
        is_untold = is_news and not self._had_news and look.version is None
        self._had_news = is_news
        if self.on_looked is not None:
            self.on_looked(is_untold)
        seen, self._unseen = self._unseen[: look.count], self._unseen[look.count :]
        for call in seen:
            call()

    def let_go(self) -> None:
        """Note that nobody looks any more."""
        self.end_poll(Look(False, None, len(self._unseen)))


class WakeupRegistry:
    """Distributes the events of watchers to the wakeups of folders."""

    def __init__(self) -> None:
        """Begin without wakeups."""
        self._wakeups: dict[str, list[Wakeup]] = {}
        self._watchers: Sequence[Watcher] = ()

    def subscribe(self, folder: str, wakeup: Wakeup | None = None) -> Wakeup:
        """Return a wakeup for `folder`, which is spelled as the watchers were given it.

        Args:
            wakeup: One of the caller's; without it, a new one.
        """
        wakeup = Wakeup() if wakeup is None else wakeup
        wakeup.on_looked = partial(self.looked, folder)
        self._wakeups.setdefault(folder, []).append(wakeup)
        return wakeup

    def unsubscribe(self, folder: str, wakeup: Wakeup) -> None:
        """Ring a wakeup no more."""
        wakeups = self._wakeups.get(folder, [])
        if wakeup in wakeups:
            wakeups.remove(wakeup)
        if not wakeups:
            self._wakeups.pop(folder, None)
        wakeup.let_go()

    async def run(self, watchers: Sequence[Watcher]) -> None:
        """Listen to all watchers until cancelled; those that want to hear of looks do."""
        self._watchers = watchers
        async with asyncio.TaskGroup() as group:
            for watcher in watchers:
                group.create_task(self._listen(watcher))

    def looked(self, folder: str, is_untold: bool) -> None:
        """Let watchers that want to know hear of a look: did it find what nobody had told of."""
        for watcher in self._watchers:
            if isinstance(watcher, HearsLooks):
                watcher.looked(folder, is_untold)

    async def _listen(self, watcher: Watcher) -> None:
        async with aclosing(watcher.events()) as events:
            async for event in events:
                wakeups = self._wakeups.get(event.folder, ())
                if event.on_seen is None:
                    for wakeup in wakeups:
                        wakeup.ring()
                    continue
                seen = _Countdown(len(wakeups), event.on_seen)
                for wakeup in tuple(wakeups):
                    wakeup.tell(event.version, seen.count)


class _Countdown:
    """Calls once when everybody has counted; at once when there is nobody."""

    def __init__(self, left: int, call: Callable[[], None]) -> None:
        self._left = left
        self._call = call
        if not left:
            call()

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._call()
