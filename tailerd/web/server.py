"""The listener itself: one address, small requests, guarded before any route is reached."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tailerd.config import Address, HttpConfig, TlsConfig
from tailerd.errors import ConfigError
from tailerd.telemetry import Telemetry, events
from tailerd.web.access import Access, Guard
from tailerd.web.answers import add_headers, errors_as_json
from tailerd.web.certificates import Certificates
from tailerd.web.connections import FIRST_SECONDS, Connections, read_body

_SHUTDOWN_SECONDS = 2.0
_LARGEST_BODY_BYTES = 16 * 1024
_LARGEST_LINE_BYTES = 4096
_LARGEST_HEADER_BYTES = 8190
_MAX_HEADERS = 64
_IDLE_SECONDS = 75.0
_LINGERING_SECONDS = 1.0
"""How long the rest of a refused body is read, so that its sender receives the answer."""
_OF_CLIENTS = (ConnectionError, asyncio.CancelledError, HttpProcessingError, TimeoutError)
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN, errno.ENOTCONN})


class WebServer:
    """Serves routes while it is entered.

    Attributes:
        address: Where it listens, with the actual port; the requested one before it is entered.
    """

    def __init__(
        self,
        address: Address,
        routes: Sequence[web.AbstractRouteDef],
        *,
        access: Access | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Initialize.

        Args:
            address: Where to listen.
            routes: The routes to serve.
            access: The access rules; by default no token is needed.
            tls: Certificates; without them it serves plain HTTP.
        """
        self.address = address
        self._routes = routes
        self._access = access or Access()
        self._tls = tls
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Return its address with the scheme."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: The address is in use, or not of this machine, or TLS cannot be set up.
        """
        certificates = None if self._tls is None else Certificates(self._tls)
        async with AsyncExitStack() as stack:
            connections = Connections()
            runner = self._prepare(connections)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            assert runner.server is not None
            port = await self._start(stack, runner.server, certificates)
            # Last, as a group that is entered wraps what fails in it.
            group = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(group.create_task(connections.watch(runner.server)).cancel)
            if certificates is not None:
                stack.callback(group.create_task(certificates.keep_renewed()).cancel)
            self._stack = stack.pop_all()
        self.address = Address(host=self.address.host, port=port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._stack.aclose()

    async def _start(
        self, stack: AsyncExitStack, handler: web.Server, certificates: Certificates | None
    ) -> int:
        """Listen until the stack ends; return the port."""
        context = None if certificates is None else certificates.context
        try:
            server = await asyncio.get_running_loop().create_server(
                handler,
                self.address.host,
                self.address.port,
                ssl=context,
                ssl_handshake_timeout=None if context is None else FIRST_SECONDS,
            )
        except OSError as error:
            raise ConfigError(
                f"http.listen is {self.address}, but that address cannot be listened on:"
                f" {error.strerror or error}.",
                remedy="Another process may have it: stop it, or set http.listen to a free port"
                " (port 0 takes any).",
            ) from error
        stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])

    def _prepare(self, connections: Connections) -> web.AppRunner:
        guard = Guard(self.address, self._access)
        app = web.Application(
            middlewares=[connections.note, errors_as_json, guard.check, read_body],
            client_max_size=_LARGEST_BODY_BYTES,
        )
        app.on_response_prepare.append(add_headers)
        app.add_routes(self._routes)
        return web.AppRunner(
            app,
            access_log=None,
            logger=_logger(),
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGERING_SECONDS,
            max_line_size=_LARGEST_LINE_BYTES,
            max_field_size=_LARGEST_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
        )


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
            access = Access.from_config(self._http)
            server = WebServer(address, self._routes, access=access, tls=self._http.tls)
            url = (await stack.enter_async_context(server)).url
        self._telemetry.emit(events.DaemonStarted(path=url))


def _is_for_operator(record: logging.LogRecord) -> bool:
    """Return whether a record is written: invalid requests and disconnects are answered only."""
    error = record.exc_info[1] if record.exc_info else None
    is_of_client = isinstance(error, _OF_CLIENTS)
    return not (is_of_client or (isinstance(error, OSError) and error.errno in _GONE))


def _logger() -> logging.Logger:
    """Return the logger for aiohttp; also filter asyncio's, which logs socket errors."""
    for name in ("tailerd.web", "asyncio"):
        logging.getLogger(name).addFilter(_is_for_operator)
    return logging.getLogger("tailerd.web")
