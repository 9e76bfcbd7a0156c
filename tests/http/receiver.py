"""An endpoint that keeps the requests that it gets, and answers them as a test wants."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

ACCEPT = 204
HANG = -1
"""Instead of a status: no answer ever comes."""
TORN = -2
"""Instead of a status: the answer ends in the middle."""
DROP = -3
"""Instead of a status: the connection is closed without an answer."""


@dataclass(frozen=True)
class Request:
    """A request that arrived; `body` is decompressed."""

    method: str
    headers: Mapping[str, str]
    body: bytes
    path: str = "/"
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def events(self) -> list[dict[str, Any]]:
        content = json.loads(self.body)
        return content if isinstance(content, list) else [content]


@dataclass(frozen=True)
class Reply:
    status: int = ACCEPT
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Rule = Callable[[Request], Reply | int]


@dataclass
class Receiver:
    """A server on loopback, in a thread of its own.

    Attributes:
        rule: Answers each request; may be replaced at any time.
        requests: All requests, in the order in which they arrived.
        accepted: Those that were answered by 2xx.
    """

    rule: Rule = lambda _: ACCEPT
    port: int = 0
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    accepted: list[Request] = field(default_factory=list)
    most_at_once: int = 0
    _running: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/hook"

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The accepted events, in the order in which they arrived."""
        return [event for request in self.accepted for event in request.events]

    async def handle(self, raw: web.Request) -> web.StreamResponse:
        body = await raw.read()
        request = Request(raw.method, dict(raw.headers), body, raw.path, dict(raw.query))
        with self._lock:
            self.requests.append(request)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            reply = await asyncio.to_thread(self.rule, request)
            return await self._answer(raw, request, reply)
        finally:
            with self._lock:
                self._running -= 1

    async def _answer(
        self, raw: web.Request, request: Request, reply: Reply | int
    ) -> web.StreamResponse:
        reply = Reply(reply) if isinstance(reply, int) else reply
        if reply.status == HANG:
            await self._ended.wait()
        if reply.status == DROP:
            assert raw.transport is not None
            raw.transport.abort()
        if reply.status == TORN:
            torn = web.StreamResponse(status=200, headers={"Content-Length": "100"})
            await torn.prepare(raw)
            await torn.write(b"half")
            assert raw.transport is not None
            raw.transport.abort()
            return torn
        if 200 <= reply.status < 300 and request.method == "POST":
            with self._lock:
                self.accepted.append(request)
        return web.Response(status=max(reply.status, 200), headers=reply.headers, body=reply.body)


@contextmanager
def running_receiver(
    rule: Rule = lambda _: ACCEPT, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """Run an endpoint until the block ends."""
    receiver = Receiver(rule=rule, port=port, tls=tls)
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{tail:.*}", receiver.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_address=True)
        await site.start()
        receiver.port = runner.addresses[0][1]
        started.set()
        await receiver._ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10), "the endpoint did not start"
    try:
        yield receiver
    finally:
        loop.call_soon_threadsafe(receiver._ended.set)
        thread.join(10)
        loop.close()
