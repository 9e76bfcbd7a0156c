"""Run blocking steps in a thread, concurrently with the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """Run a blocking step in a thread; when cancelled, wait for it, then propagate.

    A thread cannot be stopped: cleanup during the step would close its file, and a second attempt
    would run concurrently with the first.
    """
    step = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait({step})
        raise
