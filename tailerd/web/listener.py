"""The daemon's listener with all its routes, opened once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiohttp import web

from tailerd.config import HttpConfig
from tailerd.telemetry import Telemetry, events
from tailerd.web.access import Access
from tailerd.web.server import WebServer


class Listener:
    """Listens from the first `open`, if an address is configured."""

    def __init__(
        self, http: HttpConfig, routes: Sequence[web.RouteDef], *, telemetry: Telemetry
    ) -> None:
        """Initialize; `routes` are all routes."""
        self._http = http
        self._routes = routes
        self._telemetry = telemetry
        self._is_open = False

    async def open(self, stack: AsyncExitStack) -> None:
        """Listen until the stack ends, and report the address; idempotent.

        Raises:
            ConfigError: The address is taken.
        """
        if self._is_open:
            return
        self._is_open = True
        url, address = "", self._http.address()
        if address is not None:
            access = Access.of(self._http)
            server = WebServer(
                address,
                [*self._routes],
                access=access,
                tls=self._http.tls,
                on_refused=self._emit_refused,
            )
            url = (await stack.enter_async_context(server)).url
        self._telemetry.emit(events.DaemonStarted(path=url))

    def _emit_refused(self, reason: str) -> None:
        reason = (
            f"{reason} They are closed at once, so that deliveries continue. Find out which client"
            " opens them, or raise the limit of open files (`ulimit -n`, `LimitNOFILE=`)."
        )
        self._telemetry.emit(
            events.ConnectionsRefused(path=str(self._http.address()), reason=reason)
        )
