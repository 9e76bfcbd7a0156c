"""Runs the asynchronous source in a separate thread, for Spark's blocking calls."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_STOP_TIMEOUT_SECONDS = 5.0


class SourceLoop:
    """Runs coroutines for blocking callers; tasks they start keep running between the calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tailerd-source", daemon=True
        )
        self._thread.start()

    def call(self, work: Coroutine[None, None, _T]) -> _T:
        """Run `work` to its end and return its result, or raise its error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancel what still runs and end the thread; idempotent."""
        if self._loop.is_closed():
            return
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


def end_quietly() -> None:
    """Discard further output of this process if it ends because Spark has closed the socket.

    That is how a query ends. PySpark would otherwise fail to report it to the closed socket, and
    print a traceback.
    """
    if isinstance(sys.exc_info()[1], EOFError):
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - kept until the process ends


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
