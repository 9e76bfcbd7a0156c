"""How long to wait before the next attempt: exponential, with jitter, bounded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
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


class Attempts:
    """Counts the failed attempts in a row of something that is repeated.

    Args:
        policy: How many there may be, and the waits between them.
        now: Returns the time of a monotonic clock.

    Attributes:
        failed: Their number.
    """

    def __init__(self, policy: RetryPolicy, now: Callable[[], float]) -> None:
        self.policy = policy
        self.failed = 0
        self._now = now
        self._since: float | None = None

    def begin(self) -> None:
        """Note the time of a failure, if it is the first in a row."""
        self._since = self._now() if self._since is None else self._since

    def count(self) -> None:
        """Count a failed attempt."""
        self.begin()
        self.failed += 1

    def reset(self) -> None:
        """Forget them: something succeeded."""
        self.failed, self._since = 0, None

    @property
    def seconds_left(self) -> float:
        """The time left for attempts."""
        if self.policy.max_seconds is None or self._since is None:
            return math.inf
        return max(0.0, self._since + self.policy.max_seconds - self._now())

    @property
    def are_exhausted(self) -> bool:
        """Whether no attempt or no time is left."""
        return self.failed == self.policy.max_attempts or self.seconds_left == 0.0

    def wait_seconds(self) -> float:
        """Return the wait before the next attempt."""
        return min(self.policy.wait_seconds(self.failed - 1), self.seconds_left)
