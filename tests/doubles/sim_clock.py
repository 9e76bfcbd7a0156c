"""Time that passes when the test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class SimClock:
    """A `Clock` that starts at a fixed moment and stands still.

    With `is_automatic` a sleep ends at once and takes the clock along, so that hours of waiting
    cost no time; otherwise sleepers wait until `advance` passes their deadline.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000, *, is_automatic: bool = False) -> None:
        self._start_ms = start_ms
        self._seconds = 0.0
        self._skew_ms = 0
        self._is_automatic = is_automatic
        self._ticket = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._start_ms + round(self._seconds * 1000) + self._skew_ms

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        if self._is_automatic or seconds <= 0:
            self._seconds += max(0.0, seconds)
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._seconds + seconds, next(self._ticket), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking sleepers in the order of their deadlines; each runs a while."""
        until = self._seconds + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            deadline, _, future = heapq.heappop(self._sleepers)
            self._seconds = max(self._seconds, deadline)
            if not future.done():
                future.set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self._seconds = until

    def jump_wall(self, milliseconds: int) -> None:
        """Move the wall clock only, either way, as an administrator or NTP does."""
        self._skew_ms += milliseconds

    @property
    def sleepers(self) -> int:
        """Number of tasks that wait on this clock."""
        return sum(1 for _, _, future in self._sleepers if not future.done())
