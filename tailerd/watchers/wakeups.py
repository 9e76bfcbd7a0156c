"""Wake many waiters from several watchers: each when its own folder may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from tailerd.watchers.base import PollObserver, Watcher

_MAX_UNSEEN = 1000
"""Maximum number of events kept for a waiter that does not poll. The oldest of more count as seen,
because its next poll reads the whole log anyway."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A waiter's pending events when it began a poll.

    Attributes:
        is_woken: Whether it was woken since its last poll, without having waited.
        version: The highest version in the events; None if none had one.
        count: Number of events that this poll covers.
    """

    is_woken: bool
    version: int | None
    count: int


class Wakeup:
    """One waiter's wakeup. It stays set until the waiter waits or polls; repeated ones merge.

    Attributes:
        on_polled: Called after each poll with whether it found commits without an event.
    """

    def __init__(self) -> None:
        """Start without a pending wakeup."""
        self.on_polled: Callable[[bool], None] | None = None
        self._had_news = True
        self._rung = asyncio.Event()
        self._version: int | None = None
        self._unseen: list[Callable[[], None]] = []

    def set(self) -> None:
        """Wake the waiter, now or when it next waits."""
        self._rung.set()

    def notify(self, version: int | None, seen: Callable[[], None]) -> None:
        """Wake the waiter, and call `seen` after its poll."""
        if version is not None:
            self._version = version if self._version is None else max(version, self._version)
        self._unseen.append(seen)
        if len(self._unseen) > _MAX_UNSEEN:
            self._unseen.pop(0)()
        self.set()

    async def wait(self) -> None:
        """Wait for a wakeup."""
        await self._rung.wait()
        self._rung.clear()

    def begin_poll(self) -> Poll:
        """Begin a poll: earlier wakeups need not wake the waiter again."""
        poll = Poll(self._rung.is_set(), self._version, len(self._unseen))
        self._rung.clear()
        self._version = None
        return poll

    def end_poll(self, poll: Poll, *, is_news: bool = False) -> None:
        """End a poll. A failed poll is not ended, but begun again.

        Args:
            is_news: Whether it found commits.
        """
        # Right after new commits there may be more, whose events are still in flight.
        is_unannounced = is_news and not self._had_news and poll.version is None
        self._had_news = is_news
        if self.on_polled is not None:
            self.on_polled(is_unannounced)
        seen, self._unseen = self._unseen[: poll.count], self._unseen[poll.count :]
        for call in seen:
            call()

    def release(self) -> None:
        """Release all events: the waiter no longer polls."""
        self.end_poll(Poll(False, None, len(self._unseen)))


class WakeupRegistry:
    """Distributes the events of watchers to the wakeups of folders."""

    def __init__(self) -> None:
        """Start without wakeups."""
        self._wakeups: dict[str, list[Wakeup]] = {}
        self._observers: Sequence[PollObserver] = ()

    def subscribe(self, folder: str, wakeup: Wakeup | None = None) -> Wakeup:
        """Return a wakeup for `folder`, which must be spelled as in the watchers.

        Args:
            wakeup: An existing one; by default a new one.
        """
        wakeup = Wakeup() if wakeup is None else wakeup
        wakeup.on_polled = partial(self.on_poll, folder)
        self._wakeups.setdefault(folder, []).append(wakeup)
        return wakeup

    def unsubscribe(self, folder: str, wakeup: Wakeup) -> None:
        """Remove a wakeup and release its events."""
        wakeups = self._wakeups.get(folder, [])
        if wakeup in wakeups:
            wakeups.remove(wakeup)
        if not wakeups:
            self._wakeups.pop(folder, None)
        wakeup.release()

    async def run(self, watchers: Sequence[Watcher]) -> None:
        """Forward the watchers' events until cancelled, and polls to `PollObserver` watchers."""
        # Asking for a protocol's methods takes long, and a poll is frequent.
        self._observers = [each for each in watchers if isinstance(each, PollObserver)]
        async with asyncio.TaskGroup() as group:
            for watcher in watchers:
                group.create_task(self._listen(watcher))

    def on_poll(self, folder: str, is_unannounced: bool) -> None:
        """Notify `PollObserver`s of a poll, and whether it found commits without an event."""
        for observer in self._observers:
            observer.on_poll(folder, is_unannounced)

    async def _listen(self, watcher: Watcher) -> None:
        async with aclosing(watcher.events()) as events:
            async for event in events:
                wakeups = self._wakeups.get(event.folder, ())
                if event.on_seen is None:
                    for wakeup in wakeups:
                        wakeup.set()
                    continue
                seen = _Countdown(len(wakeups), event.on_seen)
                for wakeup in tuple(wakeups):
                    wakeup.notify(event.version, seen.count)


class _Countdown:
    """Calls a function once after `left` counts; at once if `left` is zero."""

    def __init__(self, left: int, call: Callable[[], None]) -> None:
        self._left = left
        self._call = call
        if not left:
            call()

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._call()
