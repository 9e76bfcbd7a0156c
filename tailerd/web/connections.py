"""Closes idle and slow connections, so that they do not block others."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from tailerd.web.answers import refusal

LOOK_SECONDS = 1.0
FIRST_SECONDS = 10.0
"""How long a connection may take for its first request."""
NEXT_SECONDS = 85.0
"""The same for a later one; a little more than aiohttp leaves an idle connection open."""
BODY_SECONDS = 10.0
"""How long the body of a request may take."""


class Connections:
    """Closes connections that are idle for too long; of too many, the longest idle.

    Args:
        most: Number of connections that may stay open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._server: web.Server | None = None
        self._is_asked = False
        self._answering: dict[object, int] = {}
        self._until: dict[object, float] = {}

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Exempt a connection while its request is answered."""
        connection = request.protocol
        self._begin(connection)
        try:
            return await handler(request)
        finally:
            self._end(connection, NEXT_SECONDS)

    @web.middleware
    async def read_body(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read the whole body before the handler runs; until then the connection counts as idle."""
        if request.can_read_body:
            connection = request.protocol
            self._end(connection, BODY_SECONDS)
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    await request.read()
            except TimeoutError:
                text = f"The body of a request must arrive within {BODY_SECONDS:.0f} seconds."
                return refusal(408, "body_too_slow", text, {"Connection": "close"})
            except (ConnectionError, RuntimeError):
                # aiohttp raises the latter if the connection was lost before this began.
                if request.transport is not None:
                    raise
                return refusal(
                    400, "connection_lost", "The client disconnected before its body arrived."
                )
            finally:
                self._begin(connection)
        return await handler(request)

    def _begin(self, connection: object) -> None:
        self._answering[connection] = self._answering.get(connection, 0) + 1

    def _end(self, connection: object, seconds: float) -> None:
        self._answering[connection] -= 1
        if not self._answering[connection]:
            del self._answering[connection]
        self._until[connection] = asyncio.get_running_loop().time() + seconds

    def make_room_soon(self) -> None:
        """Close the longest idle of too many connections, after new ones are registered."""
        if not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._make_room)

    async def watch(self, server: web.Server) -> None:
        """Check all connections every `LOOK_SECONDS`, until cancelled."""
        self._server = server
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._make_room()

    def _make_room(self) -> None:
        self._is_asked = False
        if self._server is None:
            return
        now, every = asyncio.get_running_loop().time(), self._server.connections
        there = [each for each in every if each not in self._answering]
        self._until = {each: self._until.get(each, now + FIRST_SECONDS) for each in there}
        quietest = sorted(there, key=lambda each: self._until[each])
        surplus = max(0, len(every) - self._most)
        for number, each in enumerate(quietest):
            if (number < surplus or self._until[each] <= now) and each.transport is not None:
                each.transport.abort()
