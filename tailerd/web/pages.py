"""The read-only pages: /metrics, /healthz, /readyz, /status."""

from __future__ import annotations

import json

from aiohttp import web

from tailerd.telemetry.metrics import CONTENT_TYPE, Metrics
from tailerd.telemetry.status import StatusBoard


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
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, request: web.Request) -> web.Response:
        """Say that the process answers."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 once every pipeline has looked at its log and while none has failed."""
        waiting = [
            f"{table.table}: {'failed' if table.state == 'failed' else 'not yet ready'}\n"
            for table in self._status.tables
            if table.state == "failed" or not table.is_ready
        ]
        return web.Response(status=503 if waiting else 200, text="".join(waiting) or "ready\n")

    async def status(self, request: web.Request) -> web.Response:
        """Show where every pipeline stands, as JSON."""
        return web.json_response(self._status.to_json(), dumps=_dumps)


def _dumps(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
