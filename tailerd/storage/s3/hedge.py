"""A second request where the first is slow to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from tailerd.storage.retries import RetryBudget

T = TypeVar("T")

_BURST = 200.0
_COST = 40.0
"""One request in twenty in the long run, because hedging a server that is slow overall makes it
slower. A request whose hedge is denied gives back two units: for the denial and for its success."""


@dataclass(slots=True)
class Progress:
    """Whether any byte of a response has arrived."""

    has_begun: bool = False


class Hedge:
    """Sends a second request if the first gets no byte in time; the first complete answer wins.

    Args:
        after_seconds: How long to wait for the first byte.
    """

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._budget = RetryBudget(_BURST, cost=_COST)

    async def ask(
        self,
        first: Callable[[Progress], Coroutine[None, None, T]],
        second: Callable[[], Coroutine[None, None, T]],
    ) -> T:
        """Return the answer of one of two requests; the other is cancelled.

        Raises:
            Exception: The first request's error, if there was no second one or it failed too.
        """
        progress = Progress()
        requested = [asyncio.create_task(first(progress))]
        try:
            await asyncio.wait(requested, timeout=self._after_seconds)
            if not requested[0].done() and not progress.has_begun and self._budget.take():
                requested.append(asyncio.create_task(second()))
            found = await _first_answer(requested)
        finally:
            for each in requested:
                each.cancel()
            # Errors of the cancelled request are ignored.
            await asyncio.gather(*requested, return_exceptions=True)
        self._budget.give()
        return found


async def _first_answer(requested: list[asyncio.Task[T]]) -> T:
    pending = set(requested)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if each.exception() is None:
                return each.result()
    return requested[0].result()
