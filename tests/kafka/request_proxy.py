"""A proxy in front of a broker that knows requests: it keeps one back, drops some, or slows all.

A request that is kept back breaks the client's connection, as a network does that goes away with
the request still on its way; `release` delivers it on its old connection.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import Self

_PIECE = 4096


class Api(IntEnum):
    """Requests by their number in the protocol."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    END_TXN = 26


class RequestProxy:
    """Forwards `port` to `target`, both on loopback, until the `with` ends.

    Attributes:
        seen: How many requests of each number came.
        bytes_per_second: Limit for each connection's requests; 0 for none.
        dropped: Requests that get no answer.
    """

    def __init__(self, port: int, target: int, *, bytes_per_second: int = 0) -> None:
        """Prepare; it listens from `__enter__` on."""
        self.seen: Counter[int] = Counter()
        self.bytes_per_second = bytes_per_second
        self.dropped: set[int] = set()
        self._port, self._target = port, target
        self._keeps: int | None = None
        self._kept: list[tuple[socket.socket, bytes]] = []
        self._sockets: list[socket.socket] = []

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
        for each in (self._listener, *self._sockets):
            _close(each)

    def keep_next(self, api: Api) -> None:
        """Keep the next request of this kind back."""
        self._keeps = api

    def has_kept(self) -> bool:
        """Return whether a request is kept back."""
        return bool(self._kept)

    def wait_until_kept(self) -> None:
        """Return once a request is kept back."""
        deadline = time.monotonic() + 10
        while not self._kept and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self._kept

    def release(self) -> None:
        """Deliver what was kept back, and wait until the broker has answered."""
        while self._kept:
            broker, frame = self._kept.pop()
            broker.sendall(frame)
            _receive(broker, *struct.unpack(">i", _receive(broker, 4)))

    def _start(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += (client, broker)
                answers = threading.Event()
                self._start(self._requests, client, broker, answers)
                self._start(self._answers, client, broker, answers)

    def _requests(
        self, client: socket.socket, broker: socket.socket, is_kept: threading.Event
    ) -> None:
        with suppress(OSError):
            while True:
                head = _receive(client, 4)
                body = _receive(client, *struct.unpack(">i", head))
                (api,) = struct.unpack_from(">h", body)
                self.seen[api] += 1
                if api == self._keeps:
                    self._keeps = None
                    is_kept.set()
                    self._kept.append((broker, head + body))
                    _close(client)
                    return
                if api in self.dropped:
                    continue
                self._send(broker, head + body)
        _close(client)
        _close(broker)

    def _answers(
        self, client: socket.socket, broker: socket.socket, is_kept: threading.Event
    ) -> None:
        with suppress(OSError):
            broker.settimeout(0.05)
            while not is_kept.is_set():
                with suppress(TimeoutError):
                    data = broker.recv(_PIECE * 16)
                    if not data:
                        break
                    client.sendall(data)
        if is_kept.is_set():
            broker.settimeout(10)
            return
        _close(client)
        _close(broker)

    def _send(self, broker: socket.socket, frame: bytes) -> None:
        if not self.bytes_per_second:
            broker.sendall(frame)
            return
        for start in range(0, len(frame), _PIECE):
            piece = frame[start : start + _PIECE]
            broker.sendall(piece)
            time.sleep(len(piece) / self.bytes_per_second)


def _receive(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
