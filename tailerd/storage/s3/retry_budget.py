"""How often a server is asked again: one that is not well must not be asked many times as much."""

from __future__ import annotations

_GAIN = 1.0


class RetryBudget:
    """Requests that may still be repeated; each repetition costs, each success gives one back.

    Used up, failures are final at once.
    """

    def __init__(self, size: float, *, cost: float) -> None:
        """Begin with a full budget."""
        self._size = self._left = size
        self._cost = cost

    def take(self) -> bool:
        """Take one repetition; tell whether there was one."""
        if self._left < self._cost:
            # Grows back a little, so that a server that is well again is noticed.
            self.give()
            return False
        self._left -= self._cost
        return True

    def give(self) -> None:
        """Note a success."""
        self._left = min(self._size, self._left + _GAIN)
