"""The listener itself: one address, small requests, guarded before any route is reached."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web

from tailerd.config import Address, TlsConfig
from tailerd.errors import ConfigError
from tailerd.web.access import Access, Guard
from tailerd.web.answers import add_headers, errors_as_json
from tailerd.web.certificates import Certificates
from tailerd.web.connections import FIRST_SECONDS, Connections
from tailerd.web.descriptors import SURPLUS, BoundedSocket, connection_share
from tailerd.web.quiet_log import REPEAT_SECONDS, listener_logger

_SHUTDOWN_SECONDS = 2.0
_LARGEST_BODY_BYTES = 16 * 1024
_LARGEST_LINE_BYTES = 4096
_LARGEST_HEADER_BYTES = 8190
_MOST_HEADERS = 64
_IDLE_SECONDS = 75.0
_LINGERING_SECONDS = 1.0
"""How long the rest of a refused body is read, so that its sender receives the answer."""


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
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Initialize.

        Args:
            address: Where to listen.
            routes: What is served.
            access: The access rules; by default no token is needed.
            tls: Certificates; without them it serves plain HTTP.
            on_refused: Called, at most once a minute, with the reason why connections are closed.
        """
        self.address = address
        self._routes = routes
        self._access = access or Access()
        self._tls = tls
        self._on_refused = on_refused
        self._refused_at: float | None = None
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
            connections = Connections(connection_share())
            runner = self._prepared(connections)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            port = await self._start(stack, runner, connections, certificates)
            # Last, as a group that is entered wraps what fails in it.
            group = await stack.enter_async_context(asyncio.TaskGroup())
            assert runner.server is not None
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
        self,
        stack: AsyncExitStack,
        runner: web.AppRunner,
        connections: Connections,
        certificates: Certificates | None,
    ) -> int:
        """Listen on every address of the host until the stack ends; return the port."""
        loop, port = asyncio.get_running_loop(), self.address.port
        context = None if certificates is None else certificates.context
        seconds = None if context is None else FIRST_SECONDS
        assert runner.server is not None
        try:
            places = await loop.getaddrinfo(
                self.address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(places):
                # One port for all addresses if any port may be used.
                place = (address[0], port, *address[2:])
                found = BoundedSocket.bound(family, kind, protocol, place)
                stack.callback(found.close)
                found.on_surplus = connections.make_room_soon
                found.on_refused = self._emit_refused
                server = await loop.create_server(
                    runner.server,
                    sock=found,
                    ssl=context,
                    ssl_handshake_timeout=seconds,
                    backlog=SURPLUS,
                )
                stack.callback(server.close)
                port = int(found.getsockname()[1])
        except OSError as error:
            raise ConfigError(
                f"http.listen is {self.address}, but that address cannot be listened on:"
                f" {error.strerror or error}.",
                remedy="Another process may have it: stop it, or set http.listen to a free port"
                " (port 0 takes any).",
            ) from error
        return port

    def _emit_refused(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._refused_at is None or now >= self._refused_at + REPEAT_SECONDS:
            self._refused_at = now
            self._on_refused(reason)

    def _prepared(self, connections: Connections) -> web.AppRunner:
        guard = Guard(self.address, self._access)
        app = web.Application(
            middlewares=[connections.note, errors_as_json, guard.check, connections.read_body],
            client_max_size=_LARGEST_BODY_BYTES,
        )
        app.on_response_prepare.append(add_headers)
        app.add_routes(self._routes)
        return web.AppRunner(
            app,
            access_log=None,
            logger=listener_logger(),
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGERING_SECONDS,
            max_line_size=_LARGEST_LINE_BYTES,
            max_field_size=_LARGEST_HEADER_BYTES,
            max_headers=_MOST_HEADERS,
        )
