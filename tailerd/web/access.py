"""Access control of the listener, checked before every route so that no route can omit it.

Every client may read, unless `http.read` is `token`. Changes require the token or a client
certificate; if neither is configured, every client of a loopback listener may make changes, and no
client of any other. Nor may clients of such a listener read more than probes and metrics, unless
the configuration has `http.read: open`.

Pages of other sites in a browser cannot make changes: they would need a custom header or a JSON
body, which need a CORS preflight, and this listener never grants one.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import SecretStr

from tailerd.config import Address, HttpConfig
from tailerd.web.answers import refusal

CONTROL_HEADER = "X-Tailerd"
KNOWN_CALLER = web.RequestKey("known_caller", bool)
"""On a request: whether its caller may see everything."""

PROBES = frozenset({"/healthz", "/readyz"})
_METRICS = "/metrics"
_PAGE = "/"
_PUBLIC = ("/static/", "/docs")
"""Path prefixes of files that come with the program and show no data of its tables."""
_READING = frozenset({"GET", "HEAD"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")
_LARGEST_BODY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access rules of the configuration.

    Attributes:
        token: The token that clients must send; None if none is set.
        read: Whether reading needs it too.
        hosts: Further names of this listener.
        takes_certificates: Whether a verified client certificate counts like the token.
        is_open_by_choice: Whether the configuration has `read: open`, not only its default.
    """

    token: SecretStr | None = None
    read: Literal["open", "token"] = "open"
    hosts: frozenset[str] = frozenset()
    takes_certificates: bool = False
    is_open_by_choice: bool = False

    @classmethod
    def from_config(cls, config: HttpConfig) -> Access:
        """Return the access rules of a configured listener."""
        return cls(
            token=config.token,
            read=config.read,
            hosts=frozenset(config.hosts),
            takes_certificates=config.tls is not None and config.tls.client_ca is not None,
            is_open_by_choice=config.read == "open" and "read" in config.model_fields_set,
        )


class Guard:
    """Passes requests to the routes, or refuses them with a reason."""

    def __init__(self, address: Address, access: Access) -> None:
        """Initialize.

        Args:
            address: Where the listener listens.
            access: The access rules.
        """
        self._address = address
        self._access = access
        self._names = _LOOPBACK_NAMES | {address.host.lower()} | access.hosts

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request, or pass it on."""
        return self._check_host(request) or self._check_request(request) or await handler(request)

    def _check_request(self, request: web.Request) -> web.Response | None:
        if (request.content_length or 0) > _LARGEST_BODY_BYTES:
            return refusal(413, "too_large", "A request has 16 KiB at most.")
        request[KNOWN_CALLER] = self._is_known(request)
        if request.match_info.http_exception is not None:
            return None  # No such path or method: that is the answer.
        if request.method in _READING:
            return self._check_read(request)
        return self._check_change(request)

    def _check_read(self, request: web.Request) -> web.Response | None:
        if self._is_closed and request.path not in {*PROBES, _METRICS}:
            return self._refuse_open("read_closed", "only probes and metrics can be read from it")
        if self._access.read == "open":
            request[KNOWN_CALLER] = True
        # The page itself holds no data: it prompts for the token, then requests the data with it.
        path = request.path
        is_public = path in PROBES or path == _PAGE or path.startswith(_PUBLIC)
        return None if is_public or request[KNOWN_CALLER] else self._unknown_caller()

    def _check_change(self, request: web.Request) -> web.Response | None:
        if self._access.token is not None or self._access.takes_certificates:
            if not request[KNOWN_CALLER]:
                return self._unknown_caller()
        elif not self._address.is_loopback:
            return self._refuse_open("control_closed", "nothing can be changed through it")
        if CONTROL_HEADER not in request.headers and request.content_type != "application/json":
            return refusal(
                403,
                "csrf_header_required",
                f"Send the header {CONTROL_HEADER}: 1, or a JSON body with its content type, which"
                " a foreign page in a browser cannot.",
            )
        return None

    @property
    def _is_closed(self) -> bool:
        access = self._access
        has_secret = access.token is not None or access.takes_certificates
        return not (has_secret or self._address.is_loopback or access.is_open_by_choice)

    def _refuse_open(self, code: str, consequence: str) -> web.Response:
        return refusal(
            403,
            code,
            f"This listener is reachable from other machines ({self._address}) and http.token is"
            f" not set, so {consequence}. Set http.token, or TAILERD__HTTP__TOKEN, or"
            " http.tls.client_ca, or listen on 127.0.0.1.",
        )

    def _unknown_caller(self) -> web.Response:
        known = "the token of `http.token`" if self._access.token else "a client certificate"
        if self._access.token and self._access.takes_certificates:
            known += " or a client certificate"
        return refusal(401, "unauthorized", f"This needs {known}.", {"WWW-Authenticate": "Bearer"})

    def _is_known(self, request: web.Request) -> bool:
        token = self._access.token
        return self._has_certificate(request) or (token is not None and _knows(request, token))

    def _has_certificate(self, request: web.Request) -> bool:
        # Only certificates signed by the authority get here: others fail in the handshake.
        return self._access.takes_certificates and bool(request.get_extra_info("peercert"))

    def _check_host(self, request: web.Request) -> web.Response | None:
        """Refuse foreign `Host` names: protection against DNS rebinding.

        A page of another site can make a browser call this address under that site's name, which
        `Host` then contains. A numeric address is no such name.
        """
        given = request.headers.getall("Host", [])
        if len(given) == 1 and all(self._is_ours(host) for host in (given[0], request.host)):
            return None
        return refusal(
            421,
            "misdirected",
            "This listener does not serve that host name. Use its address, or add the name to"
            " http.hosts.",
        )

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["v6"] or match["name"]).lower()
        return name in self._names or (self._address.host in _EVERY_ADDRESS and _is_number(name))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _knows(request: web.Request, token: SecretStr) -> bool:
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    right = token.get_secret_value().encode()
    # Compared even if the scheme is wrong, in constant time.
    return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), right) and (
        kind.lower() == "bearer"
    )
