"""Threads for the blocking requests of a client."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_END_SECONDS = 2.0


class RequestThreads:
    """Runs requests side by side, in daemon threads: one that hangs keeps no process alive.

    Args:
        limit: Maximum number of requests in flight.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._process = os.getpid()
        self._requests: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._open: set[Future[Any]] = set()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._starting = threading.Lock()
        # A client's thread that returned to an interpreter that is being taken down would end the
        # process with SIGABRT.
        atexit.register(self._end)

    def submit(self, request: Callable[[], T]) -> Future[T]:
        """Start a request; called in any thread."""
        future: Future[T] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        self._requests.put((future, request))
        if not self._idle.acquire(blocking=False):
            with self._starting:
                if self._started < self._limit:
                    self._started += 1
                    threading.Thread(target=self._serve, name="request", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            try:
                future, request = self._requests.get_nowait()
            except Empty:
                self._idle.release()
                future, request = self._requests.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(request())
                except BaseException as error:  # noqa: BLE001 - the caller's to handle
                    future.set_exception(error)
            # Answers are large, and the next request may come late.
            del future, request

    def _end(self) -> None:
        # A forked process has the requests, but not their threads.
        if os.getpid() == self._process:
            wait(set(self._open), _END_SECONDS)
