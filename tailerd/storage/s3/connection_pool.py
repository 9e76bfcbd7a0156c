"""GETs over HTTP/1.1 whose bodies are received into their final memory, without copies.

Only S3's usual response to a GET is supported: a length, then that many bytes. Everything else
raises `NotUnderstoodError`, and the caller uses the SDK instead.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import cast

from tailerd.storage.remote_input import allocate_memory
from tailerd.storage.s3.hedge import Hedge, Progress

_HEAD_BYTES = 16 * 1024
_IDLE_SECONDS = 10.0
"""A connection idle for longer is not reused: a middlebox may have dropped it."""
_NO_BODY = frozenset({204, 304})


class NotUnderstoodError(Exception):
    """The server sent a response that is not supported here; never leaves this package."""


class ConnectionEndedError(OSError):
    """The server closed the connection before the response was complete.

    Attributes:
        is_unanswered: No byte of the response had arrived.
    """

    def __init__(self, reported: str, *, is_unanswered: bool) -> None:
        super().__init__(reported)
        self.is_unanswered = is_unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's response.

    Attributes:
        headers: By lower-case name.
        body: In its own memory.
    """

    status: int
    headers: dict[str, str]
    body: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The target of connections; `tls` is None for unencrypted ones."""

    name: str
    port: int
    tls: ssl.SSLContext | None = None


class HttpConnectionPool:
    """Persistent connections to one host; used on one event loop."""

    def __init__(
        self,
        host: Host,
        *,
        connect_seconds: float,
        read_seconds: float,
        hedge_seconds: float | None = None,
    ) -> None:
        """Connect with the first request.

        Args:
            read_seconds: The longest time without a byte.
            hedge_seconds: How long to wait for the first byte before a second request; None for
                none.
        """
        self._host = host
        self._hedge = None if hedge_seconds is None else Hedge(hedge_seconds)
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._idle: list[_Connection] = []
        self._is_closed = False

    async def get(self, head: bytes, into: memoryview | None = None) -> Answer:
        """Send a request and return its response.

        Args:
            into: Memory for a body of exactly this length; other bodies get their own.

        Raises:
            NotUnderstoodError: The response is not supported.
            OSError, TimeoutError: The connection failed.
        """
        if self._hedge is None:
            return await self._once(head, into, None)
        return await self._hedge.ask(
            lambda progress: self._once(head, into, progress),
            # Two requests may not receive into the same memory.
            lambda: self._once(head, None, None),
        )

    async def _once(
        self, head: bytes, into: memoryview | None, progress: Progress | None
    ) -> Answer:
        kept = self._take()
        if kept is not None:
            try:
                return await self._ask(kept, head, into, progress)
            except ConnectionEndedError as error:
                # Closed by the server while it was idle, which is not a failure.
                if not error.is_unanswered:
                    raise
        return await self._ask(await self._connect(), head, into, progress)

    def close(self) -> None:
        """Close idle connections at once, and busy ones after their request."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Connection | None:
        now = time.monotonic()
        while self._idle:
            last = self._idle.pop()
            if last.is_open and now - last.used_at < _IDLE_SECONDS:
                return last
            last.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        host = self._host
        async with asyncio.timeout(self._connect_seconds):
            _, made = await loop.create_connection(_Connection, host.name, host.port, ssl=host.tls)
        return made

    async def _ask(
        self,
        connection: _Connection,
        head: bytes,
        into: memoryview | None,
        progress: Progress | None,
    ) -> Answer:
        connection.progress = progress
        try:
            answer = await connection.ask(head, self._read_seconds, into)
        except BaseException:
            connection.close()
            raise
        if self._is_closed:
            connection.close()
        elif connection.is_open:
            self._idle.append(connection)
        return answer


class _Connection(asyncio.BufferedProtocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.used_at = 0.0
        self.progress: Progress | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._head = memoryview(bytearray(_HEAD_BYTES))
        self._body: memoryview | None = None
        self._into: memoryview | None = None
        self._filled = 0
        self._status, self._headers = 0, dict[str, str]()
        self._last_byte_at = 0.0
        self._limit = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, head: bytes, seconds: float, into: memoryview | None) -> Answer:
        if self._transport is None:
            raise ConnectionEndedError("the connection has ended", is_unanswered=True)
        self._body, self._into, self._filled = None, into, 0
        self._last_byte_at, self._limit = self._loop.time(), seconds
        self._waiting = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._check_deadline)
        self._transport.write(head)
        try:
            return await self._waiting
        finally:
            self._waiting = None
            self._timer.cancel()

    def _check_deadline(self) -> None:
        left = self._last_byte_at + self._limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_deadline)
            return
        self._fail(TimeoutError(f"no answer for {self._limit:g} s"))
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        is_unanswered = self._body is None and not self._filled
        reported = str(exc) if exc else "the server ended the connection"
        self._fail(ConnectionEndedError(reported, is_unanswered=is_unanswered))

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._head if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._last_byte_at = self._loop.time()
        if self.progress is not None:
            self.progress.has_begun = True
        self._filled += nbytes
        if self._waiting is None:
            # Data without a request.
            self.close()
            return
        try:
            if self._body is None and not self._read_head():
                return
        except (NotUnderstoodError, ValueError, UnicodeDecodeError) as error:
            self._fail(NotUnderstoodError(str(error)))
            self.close()
            return
        assert self._body is not None
        if self._filled == len(self._body):
            self._finish()

    def _read_head(self) -> bool:
        """Start the body once the head is complete; return whether it is."""
        found = bytes(self._head[: self._filled])
        end = found.find(b"\r\n\r\n")
        if end < 0:
            if self._filled == _HEAD_BYTES:
                raise NotUnderstoodError("the head of the answer is too long")
            return False
        first, *lines = found[:end].decode("latin-1").split("\r\n")
        version, status, *_ = first.split(" ", 2)
        fields = (line.partition(":") for line in lines)
        self._headers = {name.lower(): value.strip() for name, _, value in fields}
        self._status = int(status)
        rest = found[end + 4 :]
        length = self._length(version)
        if len(rest) > length:
            raise NotUnderstoodError("more bytes came than were announced")
        into = self._into
        fits = into is not None and len(into) == length and self._status < 300
        self._body = into if into is not None and fits else allocate_memory(length)
        self._body[: len(rest)] = rest
        self._filled = len(rest)
        return True

    def _length(self, version: str) -> int:
        headers = self._headers
        if version != "HTTP/1.1" or self._status < 200 or "transfer-encoding" in headers:
            raise NotUnderstoodError(f"{version} {self._status} without a length")
        if self._status in _NO_BODY:
            return 0
        if "content-length" not in headers or "content-encoding" in headers:
            raise NotUnderstoodError("an answer without a plain length")
        return int(headers["content-length"])

    def _finish(self) -> None:
        assert self._body is not None
        answer = Answer(status=self._status, headers=self._headers, body=self._body)
        self._body, self._into, self._filled = None, None, 0
        self.used_at = time.monotonic()
        if self._headers.get("connection", "").lower() == "close" and self._transport is not None:
            self._transport.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)
