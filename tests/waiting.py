"""Waits for what must come, as long as the slowest machine may need.

Only a test that fails waits so long. A bound that is itself the claim stays with its test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

# A busy machine of half the speed took three minutes to start a JVM.
PATIENCE_SECONDS = 300.0

T = TypeVar("T")


def _not_yet() -> str:
    return "it did not happen in time"


def eventually(
    look: Callable[[], T],
    seconds: float = PATIENCE_SECONDS,
    *,
    explain: Callable[[], str] = _not_yet,
) -> T:
    """Look until there is something, at first often: the processor has other work too.

    Args:
        look: Returns something true once it is there.
        seconds: The longest wait.
        explain: Returns the reason that the failure shows.
    """
    deadline = time.monotonic() + seconds
    pause = 0.02
    while not (found := look()):
        assert time.monotonic() < deadline, explain()
        time.sleep(pause)
        pause = min(pause * 1.2, 0.2)
    return found


async def comes(holds: Callable[[], object]) -> None:
    """Let the loop run until something holds that has no event."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - a look, not an event
            await asyncio.sleep(0.001)
