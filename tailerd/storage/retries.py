"""Bounds of requests that are sent again: they must not multiply the load on a failing server."""

from __future__ import annotations

import asyncio
import random

from tailerd.backoff import Backoff

_GAIN = 1.0
_BACKOFF = Backoff(first_seconds=0.1, max_seconds=5.0)
_RETRIES = 500.0
_RETRY_COST = 5.0


class RetryBudget:
    """Limits retries: each retry takes `cost` units, each success gives one back.

    When the budget is used up, failures are final.
    """

    def __init__(self, size: float, *, cost: float) -> None:
        """Start with a full budget."""
        self._size = self._left = size
        self._cost = cost

    def take(self) -> bool:
        """Take one retry; return whether one was available."""
        if self._left < self._cost:
            # Grows back a little, so that a recovered server is noticed.
            self.give()
            return False
        self._left -= self._cost
        return True

    def give(self) -> None:
        """Record a success."""
        self._left = min(self._size, self._left + _GAIN)


class Retries:
    """The retries of one account's requests."""

    def __init__(self) -> None:
        """Start with a full budget."""
        self._budget = RetryBudget(_RETRIES, cost=_RETRY_COST)
        self._chance = random.Random()

    async def wait(self, attempt: int, attempts: int) -> bool:
        """Wait before another attempt; return False, at once, if there is none.

        Args:
            attempt: Number of the failed attempt, counted from 0.
            attempts: Maximum number of attempts per request.
        """
        if attempt + 1 >= attempts or not self._budget.take():
            return False
        await asyncio.sleep(_BACKOFF.wait_seconds(attempt, self._chance))
        return True

    def note_success(self) -> None:
        """Record a request that succeeded."""
        self._budget.give()
