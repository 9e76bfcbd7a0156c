"""The client of schema registries: who it says it is, what it makes of answers, what it hides."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import ConfigError, IncompatibleSchemaError, SinkError, SinkRefusedError
from tailerd.records.base import RecordSchema
from tailerd.sinks.kafka.schema_registry.client import RegistryClient
from tailerd.sinks.kafka.schema_registry.config import SchemaRegistryConfig
from tests.kafka.certificates import make_certificates
from tests.kafka.ports import free_port

SCHEMA = RecordSchema(part="value", kind="AVRO", name="orders.Value", text='"string"')
FOUND = {"subject": "s", "version": 1, "id": 7, "schema": '"string"'}


@dataclass
class Scripted:
    """A server that gives one answer to everything, and keeps what it was asked."""

    status: int = 200
    body: bytes = json.dumps(FOUND).encode()
    requested: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def serving(self, context: ssl.SSLContext | None = None) -> Iterator[Scripted]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.requested.append((self.path, self.headers.get("Authorization")))
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                self.send_response(script.status)
                self.send_header("Content-Length", str(len(script.body)))
                self.end_headers()
                self.wfile.write(script.body)

            do_POST = do_PUT = do_GET  # noqa: N815 - of http.server

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of http.server
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def client(*urls: str, **fields: Any) -> RegistryClient:
    section = {"urls": list(urls), "retries": 0, "timeout": "2s", **fields}
    return RegistryClient(SchemaRegistryConfig.model_validate(section))


def refusal(code: int, message: str) -> bytes:
    return json.dumps({"error_code": code, "message": message}).encode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        (
            {"basic_auth": {"username": "ä", "password": "a:b"}},
            "Basic " + b64encode("ä:a:b".encode()).decode(),
        ),
        ({"bearer_token": "geheim"}, "Bearer geheim"),
    ],
    ids=["nobody", "basic", "bearer"],
)
def test_each_request_says_who_asks(fields: dict[str, Any], expected: str | None) -> None:
    with Scripted().serving() as server:
        asking = client(server.url, **fields)
        assert asking.registered_id("s", SCHEMA) == 7
        asking.check("s")
    assert [authorization for _, authorization in server.requested] == [expected, expected]


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (401, SinkRefusedError, False),
        (403, SinkRefusedError, False),
        (409, IncompatibleSchemaError, False),
        (422, SinkRefusedError, False),
        (429, SinkError, True),
        (500, SinkError, True),
        (503, SinkError, True),
    ],
)
def test_an_answer_stops_or_is_asked_for_again_and_hides_secrets(
    status: int, kind: type[SinkError], retryable: bool
) -> None:
    body = refusal(status * 100, "no, geheim is wrong")
    with Scripted(status=status, body=body).serving() as server:
        asking = client(server.url, basic_auth={"username": "tailerd", "password": "geheim"})
        with pytest.raises(kind) as raised:
            asking.register("orders-value", SCHEMA)
    assert type(raised.value) is kind
    assert raised.value.retryable is retryable
    reported = str(raised.value)
    assert "geheim" not in reported
    assert "orders-value" in reported
    assert "(secret) is wrong" in reported


def test_what_is_not_found_is_no_error_but_in_a_check() -> None:
    with Scripted(status=404, body=refusal(40401, "no subject")).serving() as server:
        asking = client(server.url)
        assert asking.registered_id("s", SCHEMA) is None
        assert asking.latest_text("s") == ""
        assert asking.is_compatible("s", SCHEMA)
        asking.check("s")
        server.body = refusal(404, "no such path")
        with pytest.raises(SinkRefusedError, match="no such path"):
            client(server.url).check("s")


NO_REGISTRY = [
    (200, b"<html>Log in geheim</html>"),
    (200, b"[]"),
    (200, b"7"),
    (404, b"<html>Log in geheim</html>"),
]
CALLS: dict[str, Callable[[RegistryClient], object]] = {
    "check": lambda asking: asking.check("s"),
    "registered_id": lambda asking: asking.registered_id("s", SCHEMA),
    "register": lambda asking: asking.register("s", SCHEMA),
    "latest_text": lambda asking: asking.latest_text("s"),
    "read_text": lambda asking: asking.read_text(7),
}


@pytest.mark.attack
@pytest.mark.parametrize(("status", "body"), NO_REGISTRY)
@pytest.mark.parametrize("call", CALLS)
def test_another_server_is_an_outage_only_where_a_registry_answered_before(
    call: str, status: int, body: bytes
) -> None:
    with Scripted().serving() as server:
        asking = client(server.url, bearer_token="geheim")
        asking.check("s")
        server.status, server.body = status, body
        with pytest.raises(SinkError, match="answers with something else") as raised:
            CALLS[call](asking)
        assert raised.value.retryable
        assert "geheim" not in str(raised.value)
        if b"html" in body:
            assert "<html>Log in" in str(raised.value)
        stranger = client(server.url)
        with pytest.raises(SinkRefusedError, match=r"Correct `schema_registry.urls`"):
            CALLS[call](stranger)


def test_a_request_is_tried_as_often_as_configured_at_each_url() -> None:
    with Scripted(status=503, body=refusal(50301, "busy")).serving() as server:
        asking = client(server.url, f"{server.url}/second", retries=1)
        with pytest.raises(SinkError, match="busy"):
            asking.latest_text("s")
    paths = [path for path, _ in server.requested]
    first = "/subjects/s/versions/latest"
    assert paths == [first, first, f"/second{first}", f"/second{first}"]


def test_the_next_url_answers_where_the_first_does_not() -> None:
    with Scripted().serving() as server:
        nobody = f"http://127.0.0.1:{free_port()}"
        assert client(nobody, server.url).latest_text("s") == '"string"'
        with pytest.raises(SinkError, match=f"{nobody} cannot be reached") as raised:
            client(nobody).latest_text("s")
    assert raised.value.retryable


def test_an_answer_is_kept_and_what_is_latest_is_asked_each_time() -> None:
    with Scripted().serving() as server:
        asking = client(server.url)
        for _ in range(3):
            asking.registered_id("s", SCHEMA)
        assert len(server.requested) == 1
        for text in ('"string"', '"int"'):
            server.body = json.dumps({**FOUND, "schema": text}).encode()
            assert asking.latest_text("s") == text


def test_certificates_are_checked_with_those_that_are_configured(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with Scripted().serving(context) as server:
        trusting = client(server.url, tls={"ca_file": str(made.authority)})
        assert trusting.latest_text("s") == '"string"'
        with pytest.raises(SinkError, match="certificate verify failed"):
            client(server.url).latest_text("s")
    with pytest.raises(ConfigError, match="certificates"):
        client(server.url, tls={"ca_file": str(tmp_path / "nothing.pem")})
