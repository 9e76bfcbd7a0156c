"""Run an event loop in its own thread, which owns the connections of the whole process.

Commands run one event loop after another, Spark executors have none, and worker threads read data
files; all of them share the connections of this loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from tailerd.errors import StorageError

T = TypeVar("T")

_CLOSE_SECONDS = 2.0


class IoThread:
    """An event loop that runs until the process ends."""

    def __init__(self) -> None:
        """Start the thread."""
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        # A daemon thread: a hanging read must not keep the process alive.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tailerd-s3", daemon=True
        )
        self._thread.start()
        atexit.register(self._end)

    def submit(self, work: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        """Start work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run work on the loop and wait for its result, blocking."""
        return self.submit(work).result()

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """Run work on the loop without blocking the caller's loop; cancelled with the caller."""
        return await asyncio.wrap_future(self.submit(work))

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Register `close` to run on the loop before the process ends."""
        self._closers.append(close)

    def _end(self) -> None:
        if os.getpid() != self._process:
            # A forked process has the loop, but not its thread.
            return
        try:
            self.submit(self._close_all()).result(_CLOSE_SECONDS)
        except (TimeoutError, StorageError):
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)

    async def _close_all(self) -> None:
        for close in self._closers:
            await close()


_lock = threading.Lock()
_thread: tuple[int, IoThread] | None = None


def io_thread() -> IoThread:
    """Return this process's I/O thread, started on first use; a forked process starts its own."""
    global _thread
    with _lock:
        if _thread is None or _thread[0] != os.getpid():
            _thread = (os.getpid(), IoThread())
        return _thread[1]


def _forget_lock() -> None:
    # A fork while another thread holds the lock would leave it locked permanently.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
