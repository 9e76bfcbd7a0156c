"""Run blocking steps in a thread, concurrently with the event loop, and free their memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")

RELEASE_BYTES = 64 * 1024 * 1024
"""Bytes that a thread decodes between two releases of its free memory, by default.

The system clears released memory before it is used again. With a release for each file of some
megabytes, that takes as long as decoding.
"""


async def in_thread(
    function: Callable[..., Result], *arguments: object, **options: object
) -> Result:
    """Run a blocking step in a thread; when cancelled, wait for it, then propagate.

    A thread cannot be stopped: cleanup during the step would close its file, and a second attempt
    would run concurrently with the first. So every step that changes something runs here.
    """
    return await complete(asyncio.to_thread(function, *arguments, **options))


async def complete(step: Awaitable[Result]) -> Result:
    """Run a step to its end; when cancelled, wait for it, then propagate."""
    future = asyncio.ensure_future(step)
    await wait_done(future)
    return future.result()


async def wait_done(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done, however often the caller is cancelled; then propagate that.

    The future is not cancelled, and its error is not raised.
    """
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        if not future.cancelled():
            # Marked as retrieved: the cancellation replaces it.
            future.exception()
        raise cancellation


async def discard(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended; its error is not raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await wait_done(task)
    if not task.cancelled():
        # Marked as retrieved, so that it is not logged.
        task.exception()


def release_memory(decoded_bytes: int = RELEASE_BYTES, release_bytes: int = RELEASE_BYTES) -> None:
    """Release the memory that this thread freed, if it decoded enough since the last time.

    Arrow's allocator keeps it, hundreds of megabytes, until the thread releases it.
    """
    _own.decoded_bytes = getattr(_own, "decoded_bytes", 0) + decoded_bytes
    if _own.decoded_bytes < release_bytes:
        return
    # Not loaded with this module: commands that read no rows need no Arrow.
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    _own.decoded_bytes = 0


_own = threading.local()
