"""A listening socket that leaves file descriptors to the rest of the process.

Unbounded accepting would take the descriptors that sinks, tables and the state need, and at the
limit asyncio retries repeatedly, with a traceback each time. Here connections beyond the listener's
share, and those for which no descriptor is left, are closed at once.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable
from typing import Any, Self

MOST_CONNECTIONS = 512
LEAST_CONNECTIONS = 8
SURPLUS = 64
"""Connections above the share that are open briefly, until the longest idle are closed."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def connection_share() -> int:
    """Return how many connections may be open: at most half of what the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(LEAST_CONNECTIONS, soft // 2 - SURPLUS))


class BoundedSocket(socket.socket):
    """Listens; its connections are counted until they are closed.

    Attributes:
        share: Number of connections that stay open; half of what the process may open, or fewer.
        on_surplus: Called when there are more.
        on_refused: Called with the reason whenever a connection is closed at once.
    """

    on_surplus: Callable[[], None]
    on_refused: Callable[[str], None]
    _open = 0
    _spare = -1

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self.share = connection_share()

    @classmethod
    def bound(cls, family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> Self:
        """Return a socket of an address, not yet listening.

        Raises:
            OSError: The address is not available.
        """
        found = cls(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.setblocking(False)
            found.bind(address)
            found._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            found.close()
            raise
        return found

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection.

        Raises:
            BlockingIOError: There is none that may stay open.
            OSError: It failed on the way, or there is no descriptor for it, not even to close it.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._refuse_next(error)
            raise
        if self._open >= self.share + SURPLUS:
            connection.close()
            self.on_refused(f"More than {self.share} connections are open.")
            raise BlockingIOError(errno.EAGAIN, "too many connections")
        self._open += 1
        if self._open > self.share:
            self.on_surplus()
        return _Counted(connection, self._closed_one), address

    def close(self) -> None:
        """Stop listening."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()

    def _closed_one(self) -> None:
        self._open -= 1

    def _refuse_next(self, error: OSError) -> None:
        """Close the first waiting connection, by means of the reserved descriptor.

        Raises:
            BlockingIOError: It was closed.
        """
        self.on_refused(f"The process cannot open more files: {error.strerror}.")
        if self._spare < 0:
            return
        os.close(self._spare)
        self._spare = -1
        try:
            connection, _ = super().accept()
            connection.close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        raise BlockingIOError(errno.EAGAIN, "no descriptor is left") from error


class _Counted(socket.socket):
    """A connection with a callback for its close."""

    def __init__(self, connection: socket.socket, on_close: Callable[[], None]) -> None:
        family, kind, protocol = connection.family, connection.type, connection.proto
        super().__init__(family, kind, protocol, fileno=connection.detach())
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        """Close it, and call `on_close` once."""
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
