"""One request to an endpoint: authorized, signed, bounded in time; and what its answer means."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import responses

import aiohttp

from tailerd import __version__
from tailerd.errors import ConfigError, SinkError, SinkRefusedError
from tailerd.sinks.http.authorization import TokenSource, decode_hmac_key, sign_body
from tailerd.sinks.http.config import HttpSinkConfig

TOO_LARGE = 413
_ANSWER_BYTES = 64 * 1024
"""Read of an answer, so that the connection can be used again; a longer one closes it."""
_SHOWN_CHARACTERS = 500
_MAX_DIGITS = 12
_HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request.

    Attributes:
        status: Its status.
        retry_after: Seconds that it asks to wait; None if it does not.
        text: The first characters of its body, without the sink's secrets. It may have values of
            rows, so errors and logs must not show it.
    """

    status: int
    retry_after: float | None = None
    text: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether the endpoint has taken the events."""
        return 200 <= self.status < 300

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429) or self.status >= 500

    @property
    def summary(self) -> str:
        """Return the status and its meaning."""
        return f"{self.status} {responses.get(self.status, '')}".strip()


class Endpoint:
    """The endpoint of one sink. Connects when it is first used, in that event loop."""

    def __init__(self, config: HttpSinkConfig) -> None:
        """Initialize.

        Raises:
            ConfigError: `hmac_key` is not valid.
        """
        self._config = config
        self._tokens = None if config.oauth is None else TokenSource(config.oauth)
        key = config.hmac_key
        self._hmac_key = None if key is None else decode_hmac_key(key.get_secret_value())
        self._query = {name: value.get_secret_value() for name, value in config.query.items()}
        self._headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, identity: str) -> Answer:
        """Send one request; with `oauth`, a second one if the token was refused.

        Args:
            body: The events.
            identity: Id of the request, the same for each attempt.

        Raises:
            SinkRefusedError: The certificate is not trusted, or the credentials are refused.
            ConfigError: A certificate file cannot be read.
            SinkError: No complete answer arrived in time.
        """
        headers = {"Content-Type": self._config.content_type, "Idempotency-Key": identity}
        if self._hmac_key is not None:
            headers |= sign_body(self._hmac_key, identity, int(time.time()), body)
        if self._config.compression == "gzip":
            headers["Content-Encoding"] = "gzip"
            body = await asyncio.to_thread(gzip.compress, body, 6, mtime=0)
        return await self._request("POST", headers, body)

    async def probe(self) -> Answer:
        """Ask for the endpoint's options, with credentials.

        Raises:
            TailerdError: As `post`.
        """
        return await self._request("OPTIONS", {}, None)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _request(self, method: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        url, seconds = self._config.url, self._config.timeout
        try:
            token, answer = await self._send(method, headers, body)
            if answer.status == 401 and self._tokens is not None:
                self._tokens.discard(token)
                _, answer = await self._send(method, headers, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise SinkRefusedError(
                f"The certificate of {url} is not trusted:"
                f" {getattr(error.certificate_error, 'verify_message', '') or 'wrong name'}.",
                remedy="Set `tls.ca_file` to the authority's certificate, or correct the host.",
            ) from error
        except TimeoutError as error:
            raise SinkError(
                f"{url} did not answer within {seconds:g} s.",
                remedy="Check the endpoint, or raise `timeout`.",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            # Texts of errors may have the whole URL with its parameters.
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SinkError(
                f"{url} cannot be reached, or its answer was cut off: {reason}.",
                remedy="Check that the endpoint runs and that `url` is right.",
            ) from error
        return answer

    async def _send(
        self, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[str, Answer]:
        """Send one request; return the token that it had, and the answer."""
        session, token = self._open(), ""
        if self._tokens is not None:
            token = await self._tokens.token(session)
        elif self._config.bearer_token is not None:
            token = self._config.bearer_token.get_secret_value()
        sent = {**self._headers, **headers}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        async with session.request(
            method,
            self._config.url,
            params=self._query,
            headers=sent,
            data=body,
            allow_redirects=False,
        ) as response:
            content = await _read_start(response)
            retry_after = response.headers.get("Retry-After")
        text = content.decode("utf-8", "backslashreplace")
        for secret in (token, *self._headers.values(), *self._query.values()):
            text = text.replace(secret, _HIDDEN) if secret else text
        return token, Answer(
            status=response.status,
            retry_after=parse_retry_after(retry_after, time.time()),
            text=text[:_SHOWN_CHARACTERS],
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            tls = _make_tls(self._config)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._config.lanes, ssl=tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"tailerd/{__version__}"},
                timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            )
        return self._session


async def _read_start(response: aiohttp.ClientResponse) -> bytes:
    """Return the first bytes of an answer; if there are more, aiohttp closes the connection."""
    content = b""
    while len(content) < _ANSWER_BYTES:
        chunk = await response.content.read(_ANSWER_BYTES - len(content))
        if not chunk:
            break
        content += chunk
    return content


def parse_retry_after(text: str | None, now_seconds: float) -> float | None:
    """Return the seconds of a `Retry-After`; None if there is none, or nobody can read it.

    Args:
        text: A number of seconds, or a date of HTTP (RFC 9110, section 10.2.3).
        now_seconds: Now, in seconds since the epoch.
    """
    text = (text or "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:_MAX_DIGITS]) if len(text) <= _MAX_DIGITS else float("inf")
    try:
        date = parsedate_to_datetime(text)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now_seconds
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds)


def _make_tls(config: HttpSinkConfig) -> ssl.SSLContext | bool:
    tls = config.tls
    if tls is None:
        return True
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.certificate_file is not None:
            # An encrypted key would ask for its password on the terminal.
            context.load_cert_chain(tls.certificate_file, tls.key_file, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"A file of `tls` cannot be read: {getattr(error, 'strerror', None) or error}.",
            remedy="Give PEM files that this user may read; the key must not be encrypted.",
            where="tls",
        ) from error
    return context
