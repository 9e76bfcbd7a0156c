"""A TCP proxy in front of a broker that breaks connections where a test says.

The broker's `proxied` listener tells clients to come here, so every connection goes through it.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 16 * 1024
# Closing with this option sends a reset at once: what a cut line looks like.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards `port` to `target`, both on loopback, until the `with` ends.

    Attributes:
        cuts: Connections it broke so far.
    """

    def __init__(self, port: int, target: int, *, chance: random.Random | None = None) -> None:
        """Prepare; it listens from `__enter__` on."""
        self.cuts = 0
        self._target = target
        self._port = port
        self._chance = chance or random.Random(1)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_open = True
        self._budget: int | None = None
        self._cut_range: tuple[int, int] | None = None
        self._loses_after: int | None = None
        self._loses_answers = False

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        # Wakes the thread that accepts; closing alone does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """Break all connections there are."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _break(each)
        self.cuts += len(sockets) // 2

    def cut_every(self, low: int, high: int) -> None:
        """Break the connection that sends after each `low` to `high` bytes from clients."""
        with self._lock:
            self._cut_range = (low, high)
            self._budget = self._chance.randint(low, high)

    def lose_answer_after(self, request_bytes: int) -> None:
        """Let the next `request_bytes` through, then break the connection instead of answering.

        The broker has done what it was asked, and the client does not know.
        """
        with self._lock:
            self._loses_after = request_bytes

    def heal(self) -> None:
        """Break nothing any more."""
        with self._lock:
            self._budget = self._cut_range = self._loses_after = None
            self._loses_answers = False

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                _break(client)
                continue
            broker.settimeout(None)
            with self._lock:
                self._sockets |= {client, broker}
            self._start(self._forward, client, broker, True)
            self._start(self._forward, broker, client, False)

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        try:
            while data := source.recv(_CHUNK):
                passed = self._passed(data, is_request)
                target.sendall(data[:passed])
                if passed < len(data):
                    self.cuts += 1
                    break
        except OSError:
            pass
        for each in (source, target):
            with self._lock:
                self._sockets.discard(each)
            _break(each)

    def _passed(self, data: bytes, is_request: bool) -> int:
        """Return how many of these bytes go through before the connection is broken."""
        with self._lock:
            if not is_request:
                if not self._loses_answers:
                    return len(data)
                self._loses_answers = False
                return 0
            if self._loses_after is not None:
                self._loses_after -= len(data)
                if self._loses_after <= 0:
                    self._loses_after, self._loses_answers = None, True
            if self._budget is None or self._cut_range is None:
                return len(data)
            passed = min(len(data), self._budget)
            self._budget -= passed
            if passed < len(data):
                self._budget = self._chance.randint(*self._cut_range)
            return passed


def _break(each: socket.socket) -> None:
    with suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        # Wakes the thread that reads from it.
        each.shutdown(socket.SHUT_RDWR)
    each.close()
