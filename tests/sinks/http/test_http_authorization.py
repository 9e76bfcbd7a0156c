"""Signatures, tokens, certificates; and that no secret is shown."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tailerd.config.shown import shown_settings
from tailerd.errors import ConfigError, SinkError, SinkRefusedError
from tests.http.receiver import ACCEPT, HANG, Receiver, Reply, Request, running_receiver
from tests.kafka.certificates import make_certificates
from tests.sinks.http.conftest import answer_first, dead_letters, deliver, reject, row_ids
from tests.sinks.http.deliveries import batch, make_config

SECRET = "s3cr3t-Value"


@pytest.mark.parametrize(
    ("text", "key"),
    [(SECRET, SECRET.encode()), ("whsec_" + base64.b64encode(b"\0\1key").decode(), b"\0\1key")],
    ids=["text", "base64"],
)
@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_a_request_is_signed_by_standard_webhooks(
    receiver: Receiver, tmp_path: Path, text: str, key: bytes, compression: str
) -> None:
    receiver.rule = answer_first(503)
    await deliver(receiver, tmp_path, batch(0, [1]), hmac_key=text, compression=compression)
    assert len(receiver.posts) == 2
    for request in receiver.posts:
        headers = request.headers
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
        assert headers["webhook-id"] == headers["Idempotency-Key"]
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60


async def test_a_key_that_is_not_base64_is_refused_without_showing_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="hmac_key") as caught:
        await deliver(receiver, tmp_path, batch(0, [1]), hmac_key=f"whsec_{SECRET}!")
    assert SECRET not in str(caught.value)


# ---------------------------------------------------------------------- OAuth


class TokenServer:
    """Issues `token-1`, `token-2`, ...; the endpoint's rule accepts the newest one."""

    def __init__(self, lifetime: object = 3600) -> None:
        self.issued = 0
        self.reply: Reply | int | None = None
        self.lifetime = lifetime
        self.forms: list[dict[str, list[str]]] = []
        self.valid = 0

    def issue(self, request: Request) -> Reply | int:
        self.forms.append(parse_qs(request.body.decode()))
        expected = base64.b64encode(b"tailerd:s3cr3t%2FValue%3A").decode()
        if request.headers["Authorization"] != f"Basic {expected}":
            return 401
        if self.reply is not None:
            return self.reply
        self.issued += 1
        self.valid = self.issued
        content = {"access_token": f"token-{self.issued}", "expires_in": self.lifetime}
        return Reply(200, body=json.dumps(content).encode())

    def check(self, request: Request) -> int:
        is_valid = request.headers["Authorization"] == f"Bearer token-{self.valid}"
        return ACCEPT if is_valid else 401


@contextmanager
def oauth(receiver: Receiver, server: TokenServer) -> Iterator[dict[str, Any]]:
    with running_receiver(server.issue) as tokens:
        receiver.rule = server.check
        section = {
            "token_url": tokens.url,
            "client_id": "tailerd",
            "client_secret": "s3cr3t/Value:",
            "scope": "a b",
            "audience": "c",
        }
        yield {"oauth": section}


async def test_one_token_serves_all_requests(receiver: Receiver, tmp_path: Path) -> None:
    server = TokenServer()
    with oauth(receiver, server) as fields:
        batches = [batch(version, range(10)) for version in range(5)]
        await deliver(receiver, tmp_path, *batches, key=["id"], **fields)
    assert len(row_ids(receiver)) == 50
    assert server.forms == [
        {"grant_type": ["client_credentials"], "scope": ["a b"], "audience": ["c"]}
    ]


async def test_a_token_is_renewed_before_it_expires(receiver: Receiver, tmp_path: Path) -> None:
    server = TokenServer(lifetime="0.02")
    with oauth(receiver, server) as fields:

        def answer(request: Request) -> int:
            # Longer than half of the token's life.
            time.sleep(0.03)
            return server.check(request)

        receiver.rule = answer
        await deliver(receiver, tmp_path, batch(0, [1]), batch(1, [2]), batch(2, [3]), **fields)
    assert (row_ids(receiver), server.issued) == ([1, 2, 3], 3)


async def test_an_expired_token_is_renewed_once(receiver: Receiver, tmp_path: Path) -> None:
    server = TokenServer()
    with oauth(receiver, server) as fields:

        def expire_once(request: Request) -> int:
            if server.issued == 1 and len(receiver.posts) == 2:
                server.valid = 0
            return server.check(request)

        receiver.rule = expire_once
        await deliver(receiver, tmp_path, batch(0, [1]), batch(1, [2]), batch(2, [3]), **fields)
        assert (row_ids(receiver), server.issued) == ([1, 2, 3], 2)
        receiver.requests.clear()
        receiver.rule = lambda _: 401
        with pytest.raises(SinkRefusedError, match="answered 401"):
            await deliver(receiver, tmp_path, batch(0, [1]), **fields)
        assert len(receiver.posts) == 2


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (400, SinkRefusedError, "answered 400, so it issues no token"),
        (302, SinkRefusedError, "answered 302"),
        (503, SinkError, "answered 503"),
        (HANG, SinkError, "did not answer: TimeoutError"),
        (Reply(200, body=b"[]"), SinkError, "has no access_token"),
        (Reply(200, body=b'{"access_token": "a\\nb"}'), SinkError, "has no access_token"),
        (Reply(200, body=b'{"access_token": "a", "expires_in": "x"}'), SinkError, "has no"),
    ],
)
async def test_a_token_server_that_fails_is_named(
    receiver: Receiver,
    tmp_path: Path,
    reply: Reply | int,
    kind: type[SinkError],
    words: str,
) -> None:
    server = TokenServer()
    server.reply = reply
    timeout = "0.5s" if reply is HANG else "60s"
    with oauth(receiver, server) as fields, pytest.raises(SinkError, match=words) as caught:
        await deliver(
            receiver, tmp_path, batch(0, [1]), retry_for="0.1s", timeout=timeout, **fields
        )
    assert type(caught.value) is kind
    assert receiver.requests == []
    assert "s3cr3t" not in str(caught.value)


# ---------------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    made = make_certificates(tmp_path_factory.mktemp("tls"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.server)
    return made.authority, context


async def test_only_a_trusted_certificate_gets_events(
    certificates: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    authority, context = certificates
    with running_receiver(tls=context) as receiver:
        with pytest.raises(SinkRefusedError, match=r"certificate of .* is not trusted") as caught:
            await deliver(receiver, tmp_path, batch(0, [1]))
        assert "tls.ca_file" in caught.value.remedy
        assert receiver.requests == []
        await deliver(receiver, tmp_path, batch(0, [1]), tls={"ca_file": str(authority)})
        assert row_ids(receiver) == [1]


@pytest.mark.parametrize("field", ["ca_file", "certificate_file"])
async def test_a_certificate_file_that_cannot_be_read_is_named(
    receiver: Receiver, tmp_path: Path, field: str
) -> None:
    for path in (tmp_path / "missing.pem", tmp_path / "wrong.pem"):
        (tmp_path / "wrong.pem").write_text("no certificate")
        with pytest.raises(ConfigError, match="A file of `tls` cannot be read"):
            await deliver(receiver, tmp_path, batch(0, [1]), tls={field: str(path)})


# ---------------------------------------------------------------------- secrets


def test_no_secret_is_in_what_is_shown_of_the_section() -> None:
    config = make_config(
        "http://127.0.0.1/hook",
        query={"code": SECRET},
        headers={"X-Key": SECRET},
        hmac_key=SECRET,
        oauth={"token_url": "http://127.0.0.1/t", "client_id": "x", "client_secret": SECRET},
    )
    for text in (repr(config), str(config), json.dumps(shown_settings(config))):
        assert SECRET not in text
    assert SECRET not in config.identity_location()


@pytest.mark.parametrize("status", [302, 401, 422, 503, HANG])
async def test_no_secret_is_in_errors_and_dead_letters_although_the_answer_has_it(
    receiver: Receiver, tmp_path: Path, status: int
) -> None:
    receiver.rule = lambda request: Reply(
        status,
        {"Location": f"/?code={SECRET}"},
        json.dumps([dict(request.headers), dict(request.query)]).encode(),
    )
    fields: dict[str, Any] = {
        "query": {"code": SECRET},
        "headers": {"X-Key": SECRET},
        "bearer_token": SECRET,
        "timeout": "0.3s",
        "retry_for": "0.1s",
        "max_retry_after": "0s",
    }
    try:
        await deliver(receiver, tmp_path, batch(0, [1]), **fields)
    except SinkError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ExceptionGroup):
            assert SECRET not in str(cause)
            cause = cause.__cause__
    letters = dead_letters(tmp_path)
    assert len(letters) == (status == 422)
    assert SECRET not in json.dumps(letters)
    assert all("(hidden)" in letter["answer"] for letter in letters)


async def test_an_error_does_not_show_what_the_answer_says_about_rows(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.rule = reject(1, body=b"n1 is no name")
    with pytest.raises(SinkRefusedError) as caught:
        await deliver(receiver, tmp_path, batch(0, [1]), on_reject="stop")
    assert "no name" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "ftp://host/"}, "write a URL with http"),
        ({"url": "https://a host/"}, "write a URL with http"),
        ({"url": "https://host:99999/"}, "Port out of range"),
        ({"url": f"https://me:{SECRET}@host/"}, "leave the user out"),
        ({"url": f"https://host/?code={SECRET}"}, "parameters belong into query"),
        ({"headers": {"Content-Type": "x"}}, "the sink itself sets Content-Type"),
        ({"headers": {"a b": SECRET}}, "not a valid name of a header"),
        ({"headers": {"X-Key": f"{SECRET}\n"}}, "ASCII"),
        ({"bearer_token": f" {SECRET}"}, "ASCII"),
        ({"bearer_token": SECRET, "headers": {"authorization": SECRET}}, "exclude each other"),
        ({"tls": {"key_file": "/k"}}, "give that too"),
        ({"format": "avro"}, "debezium"),
        ({"dead_letters": "s3://bucket/letters"}, "a file of this machine"),
        ({"stop_on": [429]}, "429 is about one request"),
        ({"cloudevents": {"source": "/{nam}"}}, "is not a placeholder"),
    ],
)
def test_a_mistake_in_the_section_is_explained_without_its_secrets(
    fields: dict[str, Any], words: str
) -> None:
    from tailerd.config.loading import parse_config

    sink = {"kind": "http", "url": "https://example.org/hook", **fields}
    content = {"tables": {"orders": {"path": "/data/orders", "sink": sink}}}
    with pytest.raises(ConfigError) as caught:
        parse_config(json.dumps(content), {}, where="tailerd.yaml")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)
