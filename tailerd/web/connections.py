"""Closes connections that complete no request in time, and of too many the longest idle."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from tailerd.web.answers import refusal

CHECK_SECONDS = 1.0
FIRST_SECONDS = 10.0
"""How long a connection may take for its first request."""
NEXT_SECONDS = 85.0
"""The same for a later one; a little more than aiohttp leaves an idle connection open."""
BODY_SECONDS = 10.0
"""How long the body of a request may take."""
MAX_CONNECTIONS = 256


class Connections:
    """The connections of a listener, and until when each may be idle."""

    def __init__(self) -> None:
        self._answering: dict[object, int] = {}
        self._until: dict[object, float] = {}

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Exempt a connection while its request is answered."""
        connection = request.protocol
        self._answering[connection] = self._answering.get(connection, 0) + 1
        try:
            return await handler(request)
        finally:
            self._answering[connection] -= 1
            if not self._answering[connection]:
                del self._answering[connection]
            self._until[connection] = asyncio.get_running_loop().time() + NEXT_SECONDS

    async def watch(self, server: web.Server) -> None:
        """Close connections every `CHECK_SECONDS`, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now, every = asyncio.get_running_loop().time(), server.connections
            idle = [each for each in every if each not in self._answering]
            self._until = {each: self._until.get(each, now + FIRST_SECONDS) for each in idle}
            surplus = len(every) - MAX_CONNECTIONS
            for number, each in enumerate(sorted(idle, key=lambda each: self._until[each])):
                if (number < surplus or self._until[each] <= now) and each.transport is not None:
                    each.transport.abort()


@web.middleware
async def read_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the whole body, in time, before the handler runs."""
    if request.can_read_body:
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
    return await handler(request)
