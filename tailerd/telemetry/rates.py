"""Recent rates: rows a second over a minute, growth over a day. Pure: `now` is an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MINUTE_SECONDS = 60
DAY_MS = 86_400_000
_BUCKET_MS = 300_000


class MinuteRate:
    """Counts of the last minute, by the second.

    Attributes:
        began: When counting began, monotonic seconds; the first count unless it is given.
    """

    def __init__(self, began: float | None = None) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        self.began = began

    def add(self, count: int, now: float) -> None:
        """Add `count` at `now`, monotonic seconds."""
        if self.began is None:
            self.began = now
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        self._forget(now)

    def per_second(self, now: float) -> float:
        """Return the mean of the last minute, or of the time since the first count if shorter."""
        self._forget(now)
        if self.began is None:
            return 0.0
        span = min(float(MINUTE_SECONDS), max(1.0, now - self.began))
        return sum(count for _, count in self._seconds) / span

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - MINUTE_SECONDS:
            self._seconds.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTotals:
    """Size of a table at one time; `rows` is None if not known."""

    files: int
    bytes: int
    rows: int | None


class DayGrowth:
    """How much a table has grown in the last 24 hours, while it was watched."""

    def __init__(self) -> None:
        self._totals: deque[tuple[int, TableTotals]] = deque()
        self._began_ms: int | None = None

    def add(self, totals: TableTotals, now_ms: int) -> None:
        """Record the size at `now_ms`; of the same five minutes only the last is kept."""
        if self._began_ms is None:
            self._began_ms = now_ms
        bucket = now_ms - now_ms % _BUCKET_MS
        # The first is the baseline of all comparisons.
        if len(self._totals) > 1 and self._totals[-1][0] == bucket:
            self._totals.pop()
        self._totals.append((bucket, totals))
        self._forget(now_ms)

    def per_day(self, now_ms: int) -> TableTotals:
        """Return the growth, negative if the table shrank.

        Raises:
            IndexError: Nothing was recorded.
        """
        self._forget(now_ms)
        then, now = self._totals[0][1], self._totals[-1][1]
        are_rows_known = then.rows is not None and now.rows is not None
        return TableTotals(
            files=now.files - then.files,
            bytes=now.bytes - then.bytes,
            rows=(now.rows or 0) - (then.rows or 0) if are_rows_known else None,
        )

    def watched_ms(self, now_ms: int) -> int:
        """Return the time between the sizes that `per_day` compares, a day at most."""
        return 0 if self._began_ms is None else min(DAY_MS, max(0, now_ms - self._began_ms))

    def _forget(self, now_ms: int) -> None:
        # The size at the beginning of the day is still needed.
        while len(self._totals) > 1 and self._totals[1][0] <= now_ms - DAY_MS:
            self._totals.popleft()
