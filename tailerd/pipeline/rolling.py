"""Gather commits for one delivery, so that sinks of files write larger ones.

Meanwhile the commits wait in the table, and the offset before them; memory holds no row of theirs.
"""

from __future__ import annotations

from tailerd.changefeed.offset import Offset, Phase
from tailerd.clock import Clock
from tailerd.formats.base import ChangeSource


class Rolling:
    """Decides when the commits after an offset are delivered.

    Args:
        max_age_seconds: Age of the oldest of them at which they are; None: at once.
    """

    def __init__(self, max_age_seconds: float | None, source: ChangeSource, clock: Clock) -> None:
        self._max_age_seconds = max_age_seconds
        self._source = source
        self._clock = clock
        self._since: tuple[Offset, float] | None = None

    async def wait_seconds(self, offset: Offset, end: Offset) -> float:
        """Return how long to wait for further commits; 0 if the delivery is due.

        Args:
            offset, end: Start of the delivery, and its end if it began now: an end before the head
                of the table means that the delivery is full.
        """
        is_inside = offset.phase is Phase.SNAPSHOT or offset.position > 0 or end.position > 0
        if self._max_age_seconds is None or is_inside:
            return 0.0
        if self._since is None or self._since[0] != offset:
            self._since = (offset, self._clock.monotonic())
        backlog = await self._source.backlog(offset)
        if end.last_version(self._source) != backlog.head_version:
            return 0.0
        age_seconds = self._clock.monotonic() - self._since[1]
        if (oldest_ms := backlog.oldest_undelivered_timestamp_ms) is not None:
            # Also of commits that were there before a restart.
            age_seconds = max(age_seconds, (self._clock.now_ms() - oldest_ms) / 1000)
        return max(0.0, self._max_age_seconds - age_seconds)
