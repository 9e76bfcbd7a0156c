"""The thread in which one sink calls its blocking client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Worker:
    """A dedicated thread: waits for brokers must not occupy shared threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"kafka-{name}")

    async def run(
        self,
        function: Callable[..., Result],
        *arguments: object,
        on_cancel: Callable[[], None] | None = None,
    ) -> Result:
        """Run a blocking step; on cancellation, wait for its end before raising.

        Args:
            function: The step; it ends by itself in bounded time.
            arguments: Its arguments.
            on_cancel: Called immediately on cancellation, so that the step can end sooner.
        """
        loop = asyncio.get_running_loop()
        step = asyncio.ensure_future(loop.run_in_executor(self._pool, function, *arguments))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            if on_cancel is not None:
                on_cancel()
            await asyncio.gather(step, return_exceptions=True)
            raise

    def close(self) -> None:
        """End the thread once its steps are complete, without waiting; idempotent."""
        self._pool.shutdown(wait=False)
