"""The listener itself: one address, small requests, only for those who call it by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tailerd.config import Address
from tailerd.errors import ConfigError

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
_SHUTDOWN_SECONDS = 2.0
_LARGEST_BODY_BYTES = 16 * 1024


class WebServer:
    """Serves routes while it is entered.

    Attributes:
        address: Where it listens, with the real port; the asked-for one before it is entered.
    """

    def __init__(self, address: Address, routes: Sequence[web.RouteDef]) -> None:
        self.address = address
        self._routes = routes
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: The address is taken, or not of this machine.
        """
        app = web.Application(
            middlewares=[_named_only(self.address)], client_max_size=_LARGEST_BODY_BYTES
        )
        app.add_routes(self._routes)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.address.host, self.address.port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"http.listen is {self.address}, but that address cannot be listened on:"
                f" {error.strerror or error}.",
                hint="Another process may have it: stop it, or set http.listen to a free port"
                " (port 0 takes any).",
            ) from error
        self._runner = runner
        port = int(runner.addresses[0][1])
        self.address = Address(host=self.address.host, port=port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def _named_only(address: Address) -> Middleware:
    """Return a middleware that refuses foreign `Host` names.

    A web page somewhere can make a browser call 127.0.0.1 under the page's own name; the name
    gives it away. Whoever listens on every address has no name to compare with.
    """
    names = _LOOPBACK_NAMES | {address.host}
    is_open = address.host in _EVERY_ADDRESS

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.url.host
        if is_open or host in names:
            return await handler(request)
        return web.Response(status=421, text="This listener does not answer to that name.\n")

    return check
