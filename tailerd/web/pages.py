"""The pages that change nothing: /metrics, /healthz, /readyz, /status."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from tailerd.telemetry.metrics import CONTENT_TYPE, Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web.access import KNOWN_CALLER


class Pages:
    """Answers from what telemetry has gathered; asks no table and no sink."""

    def __init__(self, *, metrics: Metrics, status: StatusBoard) -> None:
        self._metrics = metrics
        self._status = status

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all pages."""
        return [
            web.get("/metrics", self.metrics),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/status", self.status),
        ]

    async def metrics(self, request: web.Request) -> web.Response:
        """Show the metrics in Prometheus's text format."""
        # A thousand tables take a while to write down; deliveries go on meanwhile.
        text = await asyncio.to_thread(self._metrics.exposition)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, request: web.Request) -> web.Response:
        """Say that the process answers."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 once every pipeline has looked at its log and while none has failed.

        A pipeline that an operator paused is as ready as it shall be. Names are for who may read.
        """
        waiting = [f"{table}: {why}\n" for table, why in self._status.unready()]
        if waiting and not request.get(KNOWN_CALLER, False):
            waiting = [f"{len(waiting)} tables are not ready\n"]
        return web.Response(status=503 if waiting else 200, text="".join(waiting) or "ready\n")

    async def status(self, request: web.Request) -> web.Response:
        """Show where every pipeline stands, as JSON."""
        shown = await asyncio.to_thread(self._status.to_json)
        return web.json_response(shown, dumps=_dumps)


def _dumps(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
