"""GETs without the vendor's client, at a quarter of its CPU cost.

The client sends the first GET to a bucket. Later ones repeat its host and signature with another
key. Special cases (proxies of the environment, other signatures, access points, redirects) are not
learned; the client continues to handle them.
"""

from __future__ import annotations

import html
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from botocore.exceptions import ClientError
from botocore.utils import get_environ_proxies

from tailerd.storage.s3.connection_pool import Answer, Host, HttpConnectionPool, NotUnderstoodError
from tailerd.storage.s3.settings import S3Account
from tailerd.storage.s3.signing import Keys, Signer, parse_scope, quote_key

_ELSEWHERE = frozenset(
    {
        *("AuthorizationHeaderMalformed", "PermanentRedirect", "Redirect", "TemporaryRedirect"),
        "IllegalLocationConstraintException",
    }
)
"""Responses that redirect elsewhere: the client handles them."""
_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{0,1000})</Message>")


class SentRequest(Protocol):
    """The parts of the client's request that are used."""

    url: str
    headers: dict[str, bytes | str]


_sent: ContextVar[list[SentRequest] | None] = ContextVar("sent", default=None)


def note_sent(request: SentRequest, **_: object) -> None:
    """Record a request that the client is about to send; handles `before-send.s3.GetObject`."""
    noted = _sent.get()
    if noted is not None:
        noted.append(request)


@contextmanager
def noting() -> Iterator[list[SentRequest]]:
    """Record the requests that the client sends inside the context."""
    noted: list[SentRequest] = []
    token = _sent.set(noted)
    try:
        yield noted
    finally:
        _sent.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How to request one bucket: the path before the key, and the fields of every request."""

    wire: HttpConnectionPool
    prefix: str
    host: str
    agent: str
    signer: Signer | None


class QuickGets:
    """The learned request parameters of one client's buckets.

    Args:
        keys: Returns the current credentials; renews them if needed.
        trust: Creates the TLS context.
    """

    def __init__(
        self,
        account: S3Account,
        keys: Callable[[], Awaitable[Keys | None]],
        trust: Callable[[], ssl.SSLContext],
    ) -> None:
        self._account = account
        self._keys = keys
        self._trust = trust
        self._ways: dict[str, _Way] = {}
        self._wires: dict[tuple[str, int, bool], HttpConnectionPool] = {}

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        span: str = "",
        etag: str = "",
        into: memoryview | None = None,
    ) -> Answer | None:
        """Return the response to a GET; None where the client has to send it.

        Args:
            span: The header `Range`.
            etag: If set, the file must have this ETag.
            into: Memory for a body of exactly this length.

        Raises:
            ClientError: The server returned an error, in the client's form.
            OSError, TimeoutError: The connection failed.
        """
        way = self._ways.get(bucket)
        if way is None:
            return None
        path = way.prefix + quote_key(key)
        headers = {"host": way.host}
        if span:
            headers["range"] = span
        if etag:
            headers["if-match"] = etag
        if way.signer is not None:
            keys = await self._keys()
            if keys is None:
                return None
            headers = way.signer.sign(path, headers, keys)
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"GET {path} HTTP/1.1\r\n{fields}user-agent: {way.agent}\r\n\r\n"
        try:
            answer = await way.wire.get(head.encode(), into)
        except NotUnderstoodError:
            self._forget(bucket)
            return None
        # A suffix range that covers the file may be answered with the whole file.
        if answer.status == (206 if span else 200) or (answer.status == 200 and span[6:7] == "-"):
            return answer
        self._check_refusal(bucket, answer)
        return None

    def _check_refusal(self, bucket: str, answer: Answer) -> None:
        code, message = (_first(pattern, answer.body) for pattern in (_CODE, _MESSAGE))
        if answer.status < 400 or code in _ELSEWHERE:
            self._forget(bucket)
            return
        raise ClientError(
            {
                "Error": {"Code": code or str(answer.status), "Message": message},
                "ResponseMetadata": {"HTTPStatusCode": answer.status},
            },
            "GetObject",
        )

    def _forget(self, bucket: str) -> None:
        # Several requests may be in flight.
        self._ways.pop(bucket, None)

    async def learn(self, bucket: str, key: str, sent: list[SentRequest]) -> None:
        """Learn how to request a bucket from the client's successful request for one of its keys.

        Learns nothing if any part of the request is unexpected.
        """
        if bucket in self._ways or not sent:
            return
        url = urlsplit(sent[-1].url)
        headers = {name.lower(): _text(value) for name, value in sent[-1].headers.items()}
        ending = quote_key(key)
        is_known = (
            url.scheme in ("http", "https")
            and not url.query
            and url.hostname
            and "@" not in url.netloc
        )
        if not is_known or not url.path.endswith(f"/{ending}") or get_environ_proxies(sent[-1].url):
            return
        signer = None
        if "authorization" in headers:
            signer = await self._signer(headers["authorization"])
            if signer is None:
                return
        elif not self._account.is_anonymous:
            return
        self._ways[bucket] = _Way(
            wire=self._wire(str(url.hostname), url.port, url.scheme == "https"),
            prefix=url.path[: -len(ending)],
            host=url.netloc,
            agent=headers.get("user-agent", "tailerd"),
            signer=signer,
        )

    async def _signer(self, authorization: str) -> Signer | None:
        scope, keys = parse_scope(authorization), await self._keys()
        if scope is None or keys is None or scope[0] != keys.access or scope[2] != "s3":
            return None
        return Signer(scope[1])

    def _wire(self, name: str, port: int | None, is_tls: bool) -> HttpConnectionPool:
        port = port or (443 if is_tls else 80)
        found = self._wires.get((name, port, is_tls))
        if found is None:
            found = self._wires[(name, port, is_tls)] = HttpConnectionPool(
                Host(name=name, port=port, tls=self._trust() if is_tls else None),
                connect_seconds=self._account.connect_timeout_seconds,
                read_seconds=self._account.read_timeout_seconds,
                hedge_seconds=self._account.hedge_seconds,
            )
        return found

    async def close(self) -> None:
        """Close idle connections."""
        self._ways.clear()
        for wire in self._wires.values():
            wire.close()


def _first(pattern: re.Pattern[bytes], body: memoryview) -> str:
    found = pattern.search(body)
    return html.unescape(found[1].decode("utf-8", "replace")) if found else ""


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
