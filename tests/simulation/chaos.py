"""How badly the world around one table behaves: drawn from the seed, the same at every replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random

from tailerd.errors import TailerdError


class KilledError(BaseException):
    """The process is dead: nothing it still tries has any effect."""


@dataclass(slots=True)
class Life:
    """One process's life. What a dead one still does must not reach the world."""

    number: int
    is_dead: bool = False

    def check(self) -> None:
        if self.is_dead:
            raise KilledError


@dataclass(slots=True)
class Chaos:
    """The misfortunes of one table.

    Attributes:
        random: Where all its chances come from; no other table draws from it.
        is_calm: Whether everything works from now on, quickly.
        latency: Mean seconds of a request.
        stall_rate, failure_rate: Share of requests that take long, and that fail.
        stale_rate, stale_seconds: Share of listings that are stale, and how far back.
        torn_rate: Share of commits seen half written for a moment.
    """

    random: Random
    latency: float = 0.01
    stall_rate: float = 0.0
    failure_rate: float = 0.0
    stale_rate: float = 0.0
    stale_seconds: float = 0.0
    torn_rate: float = 0.0
    is_calm: bool = False
    faults: int = field(default=0)

    @classmethod
    def of(cls, source: Random) -> Chaos:
        """Draw a world: some are kind, some are hostile, most are in between."""
        return cls(
            random=source,
            latency=source.choice([0.0, 0.002, 0.02, 0.2]),
            stall_rate=source.choice([0.0, 0.0, 0.01, 0.05]),
            failure_rate=source.choice([0.0, 0.0, 0.01, 0.04, 0.12]),
            stale_rate=source.choice([0.0, 0.3, 0.8]),
            stale_seconds=source.choice([0.05, 0.4, 0.4, 4.0]),
            torn_rate=source.choice([0.0, 0.0, 0.1]),
        )

    def seconds(self) -> float:
        """Return how long the next step takes."""
        if self.is_calm:
            return 0.001
        if self.random.random() < self.stall_rate:
            return self.random.uniform(1, 15)
        return self.random.expovariate(1 / self.latency) if self.latency else 0.0

    async def pause(self, life: Life) -> None:
        """Take time; does not return to a process that died meanwhile."""
        life.check()
        await asyncio.sleep(self.seconds())
        life.check()

    def may_fail(self, error: Callable[[], TailerdError]) -> None:
        """Raise, by chance."""
        if not self.is_calm and self.random.random() < self.failure_rate:
            self.faults += 1
            raise error()

    def hits(self, rate: float) -> bool:
        """Tell whether a misfortune of that share happens now."""
        return not self.is_calm and self.random.random() < rate


CURRENT: ContextVar[Chaos | None] = ContextVar("chaos of the table at work", default=None)


def thread_seconds() -> float:
    """Return how long the next piece of work in a thread takes, for the table at work."""
    chaos = CURRENT.get()
    return 0.001 if chaos is None else chaos.seconds()
