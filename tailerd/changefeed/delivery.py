"""Tracks deliveries that finish in any order, and advances the offset in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tailerd.changefeed.offset import Offset
from tailerd.errors import BugError


@dataclass(slots=True)
class _Pending:
    end: Offset
    is_delivered: bool = False


class DeliveryTracker:
    """Derives from completed deliveries the offset that is safe to save.

    Call `begin` in table order, `acknowledge` in any order. The returned offset covers an unbroken
    run of deliveries from the start; it never moves backward.
    """

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._by_end: dict[Offset, _Pending] = {}

    @property
    def in_flight(self) -> int:
        """Number of deliveries begun and not yet covered by a returned offset."""
        return len(self._pending)

    def begin(self, end: Offset) -> None:
        """Note that a delivery up to `end` has started.

        Raises:
            BugError: `end` does not come after every delivery begun before.
        """
        if self._pending and not self._pending[-1].end.is_before(end):
            raise BugError(f"Delivery {end.to_json()} was begun out of order.")
        pending = _Pending(end)
        self._pending.append(pending)
        self._by_end[end] = pending

    def acknowledge(self, end: Offset) -> Offset | None:
        """Note that the delivery up to `end` is acknowledged; return the offset to save, if any.

        Raises:
            BugError: That delivery was never begun, or was acknowledged already.
        """
        pending = self._by_end.pop(end, None)
        if pending is None:
            raise BugError(f"Delivery {end.to_json()} was acknowledged but never begun.")
        pending.is_delivered = True
        safe: Offset | None = None
        while self._pending and self._pending[0].is_delivered:
            safe = self._pending.popleft().end
        return safe
