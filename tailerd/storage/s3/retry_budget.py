"""A retry budget: retries must not multiply the load on a failing server."""

from __future__ import annotations

_GAIN = 1.0


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
