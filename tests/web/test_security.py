"""What strangers try on the listener, over real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr, ValidationError

from tailerd.config import Address, HttpConfig, TlsConfig
from tailerd.config.explain import explain
from tailerd.errors import ConfigError
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web import connections
from tailerd.web.access import Access
from tailerd.web.answers import HEADERS
from tailerd.web.certificates import Certificates
from tailerd.web.control import ControlRoutes
from tailerd.web.pages import Pages
from tailerd.web.server import WebServer
from tests.doubles.sim_clock import SimClock
from tests.kafka.certificates import make_certificates
from tests.waiting import PATIENCE_SECONDS
from tests.web.test_control import DELIBERATE, EVERYWHERE, LOOPBACK, Steered

TOKEN = "a-long-random-text"
KNOWN = {"Authorization": f"Bearer {TOKEN}"}
HOSTILE = ["<script>alert(1)</script>", "../../etc/passwd", "🪣", "x" * 300, "a\u202eb", "%00"]


def server(
    steered: Steered | None = None,
    address: Address = LOOPBACK,
    access: Access | None = None,
    tls: TlsConfig | None = None,
) -> WebServer:
    """Return a listener with all routes, for one table that has not started."""
    clock = SimClock()
    pages = Pages(metrics=Metrics(clock), status=StatusBoard([("orders", "arrow")], clock))
    routes = [*pages.routes(), *ControlRoutes(steered or Steered()).routes()]
    return WebServer(address, routes, access=access, tls=tls)


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: Mapping[str, str], text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def code(self) -> str:
        """Return the code of an error."""
        return str(json.loads(self.text)["error"]["code"])


async def ask(
    listener: WebServer,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    scheme = "http" if context is None else "https"
    url = f"{scheme}://127.0.0.1:{listener.address.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=body, headers=headers, ssl=context or True) as answer,
    ):
        return Answer(answer.status, answer.headers, await answer.text())


async def send(listener: WebServer, request: bytes) -> bytes:
    """Send bytes as they are, and return all that comes back until the listener closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            found = await reader.read()
        except ConnectionResetError:
            found = b""
    writer.close()
    return found


# What nobody may see without the token


@pytest.mark.parametrize("address", [LOOPBACK, EVERYWHERE], ids=["loopback", "everywhere"])
@pytest.mark.parametrize("path", ["/status", "/metrics"])
async def test_reading_by_token_is_for_who_has_it(address: Address, path: str) -> None:
    access = Access(token=SecretStr(TOKEN), read="token")
    async with server(address=address, access=access) as listener:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Token": TOKEN}):
            answer = await ask(listener, path, headers=headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "orders" not in answer.text
        answer = await ask(listener, f"{path}?token={TOKEN}")
        assert answer.status == 401, "a token in a URL ends in logs and histories"
        assert (await ask(listener, path, headers=KNOWN)).status == 200


async def test_probes_need_no_token_and_name_no_table() -> None:
    access = Access(token=SecretStr(TOKEN), read="token")
    async with server(access=access) as listener:
        assert (await ask(listener, "/healthz")).status == 200
        answer = await ask(listener, "/readyz")
        assert (answer.status, answer.text) == (503, "1 tables are not ready\n")
        known = await ask(listener, "/readyz", headers=KNOWN)
        assert (known.status, known.text) == (503, "orders: not yet ready\n")


async def test_a_token_for_changes_leaves_reading_open() -> None:
    async with server(access=Access(token=SecretStr(TOKEN))) as listener:
        assert (await ask(listener, "/status")).status == 200
        refused = await ask(listener, "/pipelines/orders/pause", "POST", DELIBERATE)
        assert (refused.status, refused.code) == (401, "unauthorized")


async def test_no_answer_holds_the_token() -> None:
    access = Access(token=SecretStr(TOKEN), read="token")
    requested = [("/status", "GET"), ("/metrics", "GET"), ("/readyz", "GET"), ("/x", "GET")]
    requested += [("/pipelines/orders/pause", "POST"), (f"/pipelines/{TOKEN[:3]}/pause", "POST")]
    async with server(access=access) as listener:
        for path, method in requested:
            answer = await ask(listener, path, method, {**KNOWN, **DELIBERATE})
            assert TOKEN not in answer.text + str(dict(answer.headers))


# Paths, methods, sizes


@pytest.mark.parametrize("path", ["/nothing", "/pipelines", "/pipelines/orders", "/status/", "//"])
async def test_an_unknown_path_is_told_cleanly(path: str) -> None:
    async with server() as listener:
        answer = await ask(listener, path)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/status", "GET"),
        ("DELETE", "/metrics", "GET"),
        ("PUT", "/pipelines/orders/pause", "POST"),
        ("GET", "/pipelines/orders/reset", "POST"),
        ("OPTIONS", "/pipelines/orders/pause", "POST"),
        ("TRACE", "/healthz", "GET"),
    ],
)
async def test_a_wrong_method_is_told_with_the_right_one(
    method: str, path: str, allowed: str
) -> None:
    async with server() as listener:
        answer = await ask(listener, path, method)
    assert (answer.status, answer.code) == (405, "wrong_method")
    assert allowed in answer.headers["Allow"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("verb", ["pause", "reset"])
async def test_hostile_names_are_unknown_and_come_back_as_json(name: str, verb: str) -> None:
    steered = Steered()
    async with server(steered) as listener:
        path = f"/pipelines/{quote(name, safe='')}/{verb}"
        answer = await ask(listener, path, "POST", DELIBERATE)
    assert (answer.status, answer.headers["Content-Type"]) == (
        404,
        "application/json; charset=utf-8",
    )
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert steered.requested == []


@pytest.mark.parametrize("path", ["/status", "/pipelines/orders/pause", "/pipelines/orders/reset"])
async def test_an_oversized_body_is_refused_before_it_is_read(path: str) -> None:
    steered = Steered()
    method = "GET" if path == "/status" else "POST"
    async with server(steered) as listener:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Tailerd: 1\r\nConnection: close\r\n"
        )
        found = await send(listener, f"{head}Content-Length: 999999999\r\n\r\n".encode())
    assert found.startswith(b"HTTP/1.1 413 ")
    assert steered.requested == []


async def test_a_body_in_chunks_without_end_is_refused() -> None:
    steered = Steered()

    async with server(steered) as listener:
        head = "POST /pipelines/orders/reset HTTP/1.1\r\nHost: localhost\r\nX-Tailerd: 1\r\n"
        chunks = b"400\r\n" + b"x" * 1024 + b"\r\n"
        request = f"{head}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        found = await send(listener, request + chunks * 32)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert steered.requested == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 500 + b"\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
    ],
    ids=["url", "header", "headers", "hosts", "lengths", "smuggling", "tls", "nonsense"],
)
async def test_what_is_no_sound_request_is_answered_400_and_not_logged(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with server() as listener:
        found = await send(listener, request_bytes)
        assert (await ask(listener, "/healthz")).status == 200
    assert found.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert b"tailerd_" not in found
    assert b"Traceback" not in found
    assert caplog.records == []


# Connections


async def test_who_says_too_little_for_too_long_is_cut_off_and_who_waits_for_an_answer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(connections, "FIRST_SECONDS", 0.3)

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response(text="late")

    async with WebServer(LOOPBACK, [web.get("/slow", slow)]) as listener:
        whole = b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        silent, trickling, waiting = await asyncio.gather(
            send(listener, b""), send(listener, whole[:20]), send(listener, whole)
        )
    assert (silent, trickling) == (b"", b"")
    assert waiting.endswith(b"late")


async def test_of_too_many_connections_the_quietest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 5)
    async with server() as listener, AsyncExitStack() as stack:
        opened = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
            stack.callback(writer.close)
            opened.append(reader)
        async with asyncio.timeout(PATIENCE_SECONDS):
            ends = [asyncio.create_task(gone(reader)) for reader in opened]
            done: set[asyncio.Task[None]] = set()
            while len(done) < 15:
                done, _ = await asyncio.wait(ends, timeout=0.1)
        await asyncio.sleep(0.3)
        assert sum(task.done() for task in ends) == 15
        for task in ends:
            task.cancel()
        assert (await ask(listener, "/healthz")).status == 200


async def gone(reader: asyncio.StreamReader) -> None:
    """Wait until the listener closes a connection."""
    with suppress(ConnectionError):
        await reader.read()


# Names


@pytest.mark.parametrize(
    ("address", "hosts", "host", "status"),
    [
        (LOOPBACK, [], "tailerd.example", 421),
        (LOOPBACK, [], "localhost", 200),
        (LOOPBACK, [], "LOCALHOST:80", 200),
        (LOOPBACK, [], "[::1]:9464", 200),
        (LOOPBACK, [], "127.0.0.1.evil.example:9464", 421),
        (LOOPBACK, ["tailerd.example"], "tailerd.example", 200),
        (LOOPBACK, ["tailerd.example"], "TAILERD.EXAMPLE:443", 200),
        (LOOPBACK, ["tailerd.example"], "x.tailerd.example", 421),
        (LOOPBACK, [], "10.0.0.1", 421),
        (EVERYWHERE, [], "10.0.0.1:9464", 200),
        (EVERYWHERE, [], "[fd00::1]:9464", 200),
        (EVERYWHERE, [], "tailerd.default.svc", 421),
        (EVERYWHERE, ["tailerd.default.svc"], "tailerd.default.svc", 200),
        (EVERYWHERE, [], "localhost@evil.example", 421),
        (EVERYWHERE, [], "localhost/evil", 421),
        (EVERYWHERE, [], "", 421),
        (EVERYWHERE, [], "[::1", 421),
        (EVERYWHERE, [], "<script>", 421),
    ],
)
async def test_only_who_knows_a_name_is_answered(
    address: Address, hosts: list[str], host: str, status: int
) -> None:
    async with server(address=address, access=Access(hosts=frozenset(hosts))) as listener:
        request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        found = await send(listener, request.encode())
    expected = (b"HTTP/1.1 %d " % status,) if host != "" else (b"HTTP/1.1 421 ", b"HTTP/1.1 400 ")
    assert found.startswith(expected)


READ = ["/", "/status", "/tables/orders", "/events", "/docs/kafka", "/static/page.css"]


@pytest.mark.attack
@pytest.mark.parametrize("address", [LOOPBACK, EVERYWHERE], ids=str)
@pytest.mark.parametrize("fields", [{}, {"read": "open"}, {"token": TOKEN}], ids=str)
async def test_a_listener_outside_loopback_shows_pages_only_with_a_token_or_by_choice(
    address: Address, fields: dict[str, str]
) -> None:
    access = Access.from_config(HttpConfig.model_validate({"listen": str(address), **fields}))
    is_closed = not fields and not address.is_loopback
    async with server(address=address, access=access) as listener:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await ask(listener, path)).status in (200, 503)
        for path in READ:
            answer = await ask(listener, path)
            # Only some of these routes are part of this listener.
            assert answer.status == 404 or (answer.status == 403) == is_closed
            assert answer.status != 403 or "http.token is not set" in answer.text
        assert (await ask(listener, "/status")).status == (403 if is_closed else 200)


@pytest.mark.parametrize(
    "request_text",
    [
        "GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\n",
        "GET http://localhost/status HTTP/1.1\r\nHost: evil.example\r\n",
        "GET /status HTTP/1.0\r\n",
    ],
)
async def test_no_second_name_gets_past_the_first(request_text: str) -> None:
    async with server() as listener:
        found = await send(listener, f"{request_text}Connection: close\r\n\r\n".encode())
    assert found.startswith((b"HTTP/1.1 421 ", b"HTTP/1.0 421 "))


# Browsers


@pytest.mark.parametrize(
    ("path", "method"),
    [
        *(("/status", "GET"), ("/nothing", "GET"), ("/status", "POST"), ("/healthz", "HEAD")),
        ("/pipelines/orders/pause", "OPTIONS"),
    ],
)
async def test_every_answer_tells_browsers_what_they_may_not_do(path: str, method: str) -> None:
    asking = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    async with server() as listener:
        answer = await ask(listener, path, method, asking)
    assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "Python" not in answer.headers["Server"]


# TLS


def client(authority: Path, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


async def test_a_client_certificate_counts_like_the_token(tmp_path: Path) -> None:
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    pem = str(ours.server)
    tls = TlsConfig(cert=pem, key=pem, client_ca=str(ours.authority))
    access = Access.from_config(HttpConfig(listen="0.0.0.0:0", read="token", tls=tls))
    steered = Steered()
    async with server(steered, EVERYWHERE, access, tls) as listener:
        assert listener.url.startswith("https://")
        known, unknown = client(ours.authority, ours.server), client(ours.authority)
        pause = "/pipelines/orders/pause"
        refused = await ask(listener, pause, "POST", DELIBERATE, context=unknown)
        assert (refused.status, refused.code) == (401, "unauthorized")
        assert (await ask(listener, "/status", context=unknown)).status == 401
        assert (await ask(listener, "/healthz", context=unknown)).status == 200
        assert steered.requested == []
        assert (await ask(listener, "/status", context=known)).status == 200
        assert (await ask(listener, pause, "POST", DELIBERATE, context=known)).status == 200
        with pytest.raises(aiohttp.ClientError):
            await ask(listener, "/healthz", context=client(ours.authority, theirs.server))
        assert await send(listener, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
    assert steered.requested == [("pause", "orders")]


def test_a_renewed_certificate_is_taken_once_it_is_whole(tmp_path: Path) -> None:
    first, second = (make_certificates(tmp_path / name) for name in ("first", "second"))
    pem = tmp_path / "live.pem"
    pem.write_bytes(first.server.read_bytes())
    certificates = Certificates(TlsConfig(cert=str(pem), key=str(pem)))
    assert certificates.renew() is False
    pem.write_text("half")
    assert certificates.renew() is False
    pem.write_bytes(second.server.read_bytes())
    assert certificates.renew() is True
    assert certificates.renew() is False


@pytest.mark.parametrize("field", ["cert", "key", "client_ca"])
@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_certificate_that_cannot_be_used_names_its_field(
    tmp_path: Path, field: str, content: str | None
) -> None:
    good = str(make_certificates(tmp_path / "good").server)
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_text(content)
    paths = {"cert": good, "key": good, "client_ca": good, field: str(bad)}
    with pytest.raises(ConfigError, match=rf"http\.tls\.({field}|key) is "):
        async with server(tls=TlsConfig.model_validate(paths)):
            pass


async def test_a_port_that_is_taken_is_named_with_tls_too(tmp_path: Path) -> None:
    pem = str(make_certificates(tmp_path).server)
    async with server() as first:
        with pytest.raises(ConfigError, match=r"http\.listen is"):
            async with server(address=first.address, tls=TlsConfig(cert=pem, key=pem)):
                pass


# Configuration


@pytest.mark.parametrize(
    ("section", "reported"),
    [
        ({"read": "token"}, "neither token nor tls.client_ca"),
        ({"read": "nobody"}, "read"),
        ({"token": "s3cret"}, "token"),
        ({"token": "a-long-random-text\n"}, "token"),
        ({"token": "ein-langer-zufälliger-text"}, "token"),
        ({"hosts": ["https://tailerd.example"]}, "host name without scheme"),
        ({"hosts": ["tailerd.example:443"]}, "host name without scheme"),
        ({"hosts": ["*"]}, "host name without scheme"),
        ({"tls": {"cert": "/x"}}, "key"),
    ],
)
def test_a_section_that_would_let_the_wrong_ones_in_is_refused(
    section: dict[str, object], reported: str
) -> None:
    with pytest.raises(ValidationError, match=reported) as refused:
        HttpConfig.model_validate(section)
    reported = explain(refused.value, HttpConfig)
    assert str(section.get("token", "unset")) not in reported
