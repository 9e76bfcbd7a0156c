"""The read-only pages: /metrics, /healthz, /readyz, /status."""

from __future__ import annotations

from aiohttp import web

from tailerd.telemetry.metrics import CONTENT_TYPE, Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web.access import KNOWN_CALLER
from tailerd.web.answers import SharedBody, send_body


class Pages:
    """Answers from telemetry alone; reads no table and no sink."""

    def __init__(self, *, metrics: Metrics, status: StatusBoard) -> None:
        self._metrics = SharedBody(metrics.exposition)
        self._board = status
        self._status = SharedBody(status.to_text)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all pages."""
        return [
            web.get("/metrics", self.metrics),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/status", self.status),
        ]

    def expire(self) -> None:
        """Discard cached answers: an operator made a change."""
        self._metrics.expire()
        self._status.expire()

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Show the metrics in Prometheus's text format, at most a second old."""
        found = await self._metrics.get()
        return await send_body(request, found.body, {"Content-Type": CONTENT_TYPE})

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer that the process is alive."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 once every pipeline has polled its log and while none has failed.

        A paused pipeline counts as ready. Names are shown only to callers with read access.
        """
        waiting = [f"{table}: {why}\n" for table, why in self._board.unready()]
        if waiting and not request.get(KNOWN_CALLER, False):
            waiting = [f"{len(waiting)} tables are not ready\n"]
        return web.Response(status=503 if waiting else 200, text="".join(waiting) or "ready\n")

    async def status(self, request: web.Request) -> web.StreamResponse:
        """Show the status of every pipeline, as JSON, at most a second old."""
        found = await self._status.get()
        kind = {"Content-Type": "application/json; charset=utf-8"}
        return await send_body(request, found.body, kind)
