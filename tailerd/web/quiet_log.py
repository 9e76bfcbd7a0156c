"""Filters the log of the listener's libraries: no disconnects, and nothing twice a minute."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

REPEAT_SECONDS = 60.0
_MOST_KINDS = 64
_OF_CLIENTS = (ConnectionError, asyncio.CancelledError, HttpProcessingError, TimeoutError)
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN, errno.ENOTCONN})


class QuietLog(logging.Filter):
    """Passes records that an operator needs, once a minute for each kind of error."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said_at: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, _OF_CLIENTS):
            # Invalid requests and disconnects of clients are answered, not logged.
            return False
        if isinstance(error, OSError) and error.errno in _GONE:
            return False
        number = error.errno if isinstance(error, OSError) else None
        kind = record.msg if error is None else (type(error), number)
        now = self._now()
        if now < self._said_at.get(kind, -REPEAT_SECONDS) + REPEAT_SECONDS:
            return False
        if len(self._said_at) >= _MOST_KINDS:
            self._said_at.clear()
        self._said_at[kind] = now
        return True


_QUIET = QuietLog()


def listener_logger() -> logging.Logger:
    """Return the logger for aiohttp; also filter asyncio's, which logs socket errors."""
    for name in ("tailerd.web", "asyncio"):
        logger = logging.getLogger(name)
        if _QUIET not in logger.filters:
            logger.addFilter(_QUIET)
    return logging.getLogger("tailerd.web")
