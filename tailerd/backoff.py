"""How long to wait before the next attempt: exponential, with jitter, bounded."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

ONCE_SECONDS = 300.0
"""How long `run --once` retries without progress; the daemon retries without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A pure schedule of waits; `attempt` counts from 0."""

    first_seconds: float = 0.2
    factor: float = 2.0
    max_seconds: float = 30.0

    def ceiling_seconds(self, attempt: int) -> float:
        """Return the longest wait before retry number `attempt`."""
        # The exponent is capped so that a week of retries cannot overflow a float.
        return min(self.max_seconds, self.first_seconds * self.factor ** min(attempt, 64))

    def wait_seconds(self, attempt: int, source: random.Random) -> float:
        """Return the wait before retry `attempt`: between half the ceiling and the ceiling."""
        ceiling = self.ceiling_seconds(attempt)
        return ceiling / 2 + source.random() * ceiling / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts, and the waits between them.

    Attributes:
        backoff: Waits between attempts.
        max_attempts: Failed attempts in a row before giving up; None: no limit.
        max_seconds: Time since the first of them before giving up; None: no limit.
        jitter: Source of randomness of the waits.
    """

    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int | None = None
    max_seconds: float | None = None
    jitter: random.Random = field(default_factory=random.Random)

    def wait_seconds(self, attempt: int) -> float:
        """Return the wait before retry number `attempt`, counted from 0."""
        return self.backoff.wait_seconds(attempt, self.jitter)

    def seconds_left(self, since: float | None, now: float) -> float:
        """Return the time left for attempts, by a monotonic clock.

        Args:
            since: Time of the first failed attempt in a row; None without one.
        """
        if self.max_seconds is None or since is None:
            return math.inf
        return max(0.0, since + self.max_seconds - now)
