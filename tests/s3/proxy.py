"""An HTTP proxy in front of a server of buckets: it counts requests, and breaks those a test names.

Every request of a client comes on a connection of its own to the server, is read whole, and so is
the answer: what happens to it is exact. The host name that was signed is passed on.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from http import HTTPStatus
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kafka.ports import free_port


class Fault(Enum):
    """What may happen to one request."""

    DELAY = "delay"
    """The answer comes late."""
    REFUSE = "refuse"
    """The connection breaks before the server hears of it."""
    RESET = "reset"
    """The connection breaks in the middle of the answer."""
    LOSE_ANSWER = "lose-answer"
    """The server does it, and the connection breaks instead of the answer."""
    TRUNCATE = "truncate"
    """The answer ends early, and in good order: the connection is closed."""
    INTERNAL = "500"
    SLOW_DOWN = "503"
    EXPIRED = "expired-token"
    DENY = "403"
    SKEW = "clock-skew"
    STALE_LIST = "stale-list"
    """A listing answers what it answered when it was asked first; others pass."""
    NO_CONDITIONS = "no-conditions"
    """The server does not see conditions."""
    HALF_DELETED = "half-deleted"
    """Of several files in one request the first half is deleted, the others have an error."""
    NO_BATCHES = "no-batches"
    """The server knows no request that deletes several files; others pass."""
    UNKNOWN = "501"
    """The server does not know such a request."""
    NO_RANGES = "no-ranges"
    """The server does not see Range."""
    NO_UPLOAD = "no-such-upload"
    """The upload that a part belongs to was aborted."""


_ERRORS = {
    Fault.INTERNAL: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.EXPIRED: (400, "ExpiredToken"),
    Fault.DENY: (403, "AccessDenied"),
    Fault.SKEW: (403, "RequestTimeTooSkewed"),
    Fault.UNKNOWN: (501, "NotImplemented"),
    Fault.NO_UPLOAD: (404, "NoSuchUpload"),
}
_CONDITIONS = ("if-none-match", "if-match", "x-goog-if-generation-match")
_HEAD_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request: `kind` is list, get, head, put, delete or other."""

    kind: str
    path: str
    query: str
    headers: dict[str, str] = field(repr=False)
    fault: Fault | None = None


Chooser = Callable[[Seen], Fault | None]


class FaultProxy:
    """Forwards to a server on loopback until the `with` ends.

    Attributes:
        requests: Everything that was asked, in order.
        choose: Says what happens to each request; None lets it through.
    """

    def __init__(self, target: int, *, delay_seconds: float = 0.5) -> None:
        """Prepare."""
        self.port = free_port()
        self.requests: list[Seen] = []
        self.choose: Chooser = lambda seen: None
        self.delay_seconds = delay_seconds
        self._target = target
        self._listings: dict[str, bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """Where clients have to ask."""
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counter[str]:
        """Return how many requests of each kind there were."""
        return Counter(seen.kind for seen in self.requests)

    def is_quiet(self) -> bool:
        """Return whether a second passes without a request: what came before is done with."""
        before = len(self.requests)
        time.sleep(1)
        return len(self.requests) == before

    def forget(self) -> None:
        """Count from zero, and let everything through."""
        self.requests = []
        self.choose = lambda seen: None

    def fail_nth(self, nth: int, fault: Fault, *, kind: str = "") -> None:
        """Let the nth request from now (1 is the next), of that kind, meet a fault."""
        left = nth

        def choose(seen: Seen) -> Fault | None:
            nonlocal left
            left -= not kind or seen.kind == kind
            return fault if left == 0 and (not kind or seen.kind == kind) else None

        self.choose = choose

    def fail_every(self, nth: int, fault: Fault) -> None:
        """Let every nth request meet a fault."""
        count = 0

        def choose(seen: Seen) -> Fault | None:
            nonlocal count
            count += 1
            return fault if count % nth == 0 else None

        self.choose = choose

    def fail_one_of(self, number: int, fault: Fault) -> None:
        """Let one of every so many requests meet a fault; which one is drawn.

        With `fail_every`, an attempt of a multiple of that many fails at the same one each time.
        """
        drawn = random.Random(number)
        upcoming: list[bool] = []

        def choose(seen: Seen) -> Fault | None:
            if not upcoming:
                failing = drawn.randrange(number)
                upcoming.extend(index == failing for index in range(number))
            return fault if upcoming.pop() else None

        self.choose = choose

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(5)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=_HEAD_LIMIT
        )

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do one request; tell whether the connection lives on."""
        line, headers = _parse(await reader.readuntil(b"\r\n\r\n"))
        if headers.pop("expect", ""):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = line.split(" ")
        url = urlsplit(target)
        kind, path = _kind(method, url.path, url.query), unquote(url.path)
        seen = Seen(kind=kind, path=path, query=url.query, headers=headers)
        fault = self.choose(seen)
        self.requests.append(replace(seen, fault=fault))
        if fault is Fault.REFUSE:
            return _break(writer)
        if fault in _ERRORS:
            status, code = _ERRORS[fault]
            if fault is Fault.EXPIRED and "x-amz-date" not in headers:
                status = 401
            answer = _error(status, code, method, is_s3=not body.startswith(b"Action="))
            writer.write(answer)
            await writer.drain()
            return True
        if fault is Fault.NO_CONDITIONS:
            headers = {k: v for k, v in headers.items() if k not in _CONDITIONS}
        if fault is Fault.NO_RANGES:
            headers = {k: v for k, v in headers.items() if k not in ("range", "x-ms-range")}
        if fault is Fault.DELAY:
            await asyncio.sleep(self.delay_seconds)
        if fault is Fault.NO_BATCHES and method == "POST":
            writer.write(_error(501, "NotImplemented", method, is_s3=True))
            return True
        undone = b""
        if fault is Fault.HALF_DELETED and method == "POST":
            body, undone = _halved(body)
            headers["content-length"] = str(len(body))
        answer = await self._forward(line, headers, body, method)
        if undone:
            answer = _with_body(answer, undone)
        if seen.kind == "list":
            first = self._listings.setdefault(target, answer)
            answer = first if fault is Fault.STALE_LIST else answer
        return await _reply(writer, answer, fault)

    async def _forward(self, line: str, headers: dict[str, str], body: bytes, method: str) -> bytes:
        """Return the server's answer, with a length instead of any other end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target, limit=_HEAD_LIMIT)
        try:
            fields = {**headers, "connection": "close"}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"{line}\r\n{head}\r\n".encode("latin-1") + body)
            await writer.drain()
            status, answered = _parse(await reader.readuntil(b"\r\n\r\n"))
            content = b"" if method == "HEAD" else await _body(reader, answered)
        finally:
            writer.close()
        for name in ("connection", "transfer-encoding", "keep-alive"):
            answered.pop(name, None)
        if method != "HEAD":
            answered["content-length"] = str(len(content))
        head = "".join(f"{name}: {value}\r\n" for name, value in answered.items())
        status = f"HTTP/1.1 {status.split(' ', 1)[1]}"
        return f"{status}\r\n{head}\r\n".encode("latin-1") + content


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    fields = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in fields}


def _kind(method: str, path: str, query: str) -> str:
    requested = parse_qs(query, keep_blank_values=True)
    match method:
        case "GET" if "list-type" in requested or requested.get("comp") == ["list"]:
            return "list"
        case "GET" if "uploads" not in requested:
            return "get"
        case "HEAD":
            return "head"
        case "PUT":
            return "put"
        case "DELETE":
            return "delete"
        case "POST" if "delete" in requested or requested.get("comp") == ["batch"]:
            return "delete"
        case _:
            return "other"


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        return b"".join(parts)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read()


async def _reply(writer: asyncio.StreamWriter, answer: bytes, fault: Fault | None) -> bool:
    head = answer.index(b"\r\n\r\n") + 4
    # In the middle of the body, of the head where there is no body.
    middle = (head + len(answer)) // 2 if len(answer) > head else head // 2
    match fault:
        case Fault.LOSE_ANSWER:
            return _break(writer)
        case Fault.RESET:
            writer.write(answer[:middle])
            await writer.drain()
            await asyncio.sleep(0.01)
            return _break(writer)
        case Fault.TRUNCATE:
            writer.write(answer[:middle])
            await writer.drain()
            return False
        case _:
            writer.write(answer)
            await writer.drain()
            return True


def _halved(body: bytes) -> tuple[bytes, bytes]:
    """Return a request for the first half of the files, and the answer about the others."""
    objects = re.findall(rb"<Object>.*?</Object>", body, re.DOTALL)
    others = objects[len(objects) // 2 :]
    for each in others:
        body = body.replace(each, b"")
    errors = b"".join(
        each.replace(b"Object>", b"Error>").replace(
            b"</Error>", b"<Code>InternalError</Code><Message>x</Message></Error>"
        )
        for each in others
    )
    return body, b"<DeleteResult>" + errors + b"</DeleteResult>"


def _with_body(answer: bytes, body: bytes) -> bytes:
    _, headers = _parse(answer[: answer.index(b"\r\n\r\n") + 4])
    headers["content-length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\n{head}\r\n".encode("latin-1") + body


def _break(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


def _error(status: int, code: str, method: str, *, is_s3: bool) -> bytes:
    """Return an answer; STS puts the same into another element."""
    reported = f"<Error><Code>{code}</Code><Message>The test says {code}.</Message></Error>"
    whole = reported if is_s3 else f"<ErrorResponse>{reported}</ErrorResponse>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>{whole}'.encode()
    has_body = method != "HEAD"
    length = len(body) if has_body else 0
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")
