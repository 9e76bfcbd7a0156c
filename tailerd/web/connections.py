"""Connections that say nothing, or their request byte by byte, do not keep the others out."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

LOOK_SECONDS = 1.0
FIRST_SECONDS = 10.0
"""How long a connection may take for its first request."""
NEXT_SECONDS = 85.0
"""The same for a later one; a little more than aiohttp leaves an idle connection open."""
MOST = 512


class Connections:
    """Closes connections that are quiet for too long; of too many, the quietest."""

    def __init__(self) -> None:
        self._answering: dict[object, int] = {}
        self._until: dict[object, float] = {}

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Leave a connection alone while its request is answered."""
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
        """Look at all connections now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            there = [each for each in server.connections if each not in self._answering]
            self._until = {each: self._until.get(each, now + FIRST_SECONDS) for each in there}
            quietest = sorted(there, key=lambda each: self._until[each])
            surplus = max(0, len(server.connections) - MOST)
            for number, each in enumerate(quietest):
                if (number < surplus or self._until[each] <= now) and each.transport is not None:
                    each.transport.abort()
