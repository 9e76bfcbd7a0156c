"""Commands against a real listener that is, or is not, a daemon."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tailerd.cli import run
from tailerd.cli.status import build_row
from tests.waiting import PATIENCE_SECONDS

Captured = pytest.CaptureFixture[str]


class Answer:
    """What the listener says, and what it was asked."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.status, self.body, self.headers = status, body, headers
        self.requested: list[tuple[str, str, dict[str, str], bytes]] = []


@contextmanager
def listening(
    status: int = 200, body: object = None, headers: dict[str, str] | None = None
) -> Iterator[tuple[str, Answer]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Answer(status, raw, headers or {})

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer.requested.append((self.command, self.path, headers, sent))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", answer
        finally:
            server.shutdown()
            thread.join()


TABLE = {
    "table": "orders",
    "state": "retrying",
    "engine": "arrow",
    "sink": "file",
    "offset_version": 4,
    "head_version": 9,
    "lag_versions": 6,
    "lag_seconds": 61.26,
    "rows_per_second": 10.04,
    "snapshot_progress": None,
    "next_retry_ms": 12_500,
    "delivered_version": 3,
    "attempt": 2,
    "last_error": {
        "code": "storage",
        "message": "The disk is full. Free space.",
        "at_ms": 4_000,
        "is_current": True,
    },
}
STATUS = {"ready": False, "tables": [TABLE, {**TABLE, "table": "refunds"}]}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILERD__HTTP__TOKEN", raising=False)


def test_status_prints_a_line_for_each_pipeline(
    capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with listening(body=STATUS) as (url, _):
        assert run(["status", "--http", url]) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert (len(lines), err) == (3, "")
    assert lines[0].split()[:3] == ["table", "state", "engine"]
    for text in ("orders", "retrying", "1 min 1 s", "10.0", "storage: The disk is full."):
        assert text in lines[1]


def test_status_tells_what_is_wrong_beside_the_tables(capfd: Captured) -> None:
    error = {"code": "queue_missing", "message": "There is no queue q."}
    problems = [{"part": "notifications", "path": "q", "error": error}, "?", {"error": None}]
    with listening(body={**STATUS, "problems": problems}) as (url, _):
        assert run(["status", "--http", url]) == 0
    out, err = capfd.readouterr()
    assert err == "notifications [queue_missing]: There is no queue q.\n"
    assert len(out.splitlines()) == 3


def test_on_a_narrow_screen_status_leaves_out_what_never_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for columns, is_wide in (("80", False), ("120", True)):
        monkeypatch.setenv("COLUMNS", columns)
        with listening(body=STATUS) as (url, _):
            shown = screen_of("status", "--http", url)
        assert ("engine" in shown) is is_wide
        assert "retrying" in shown, "a state is never cut off"


def screen_of(*arguments: str) -> str:
    """What a command shows on a terminal."""
    master, slave = os.openpty()
    program = [sys.executable, "-c", "from tailerd.cli import main; main()", *arguments]
    with open(master, "rb", buffering=0) as screen:
        with open(slave, "wb") as stream:
            subprocess.run(program, stdout=stream, check=True, timeout=PATIENCE_SECONDS)
        text = b""
        # Linux ends a terminal that nobody writes to any longer with EIO.
        with suppress(OSError):
            while piece := screen.read(65_536):
                text += piece
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode())


def test_status_as_json_has_all_fields_of_one_pipeline(capfd: Captured) -> None:
    with listening(body=STATUS) as (url, _):
        assert run(["status", "refunds", "--http", url, "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == {**TABLE, "table": "refunds"}
        assert run(["status", "refund", "--http", url]) == 2
        assert "`refunds`" in capfd.readouterr().err


def test_a_line_tells_how_long_until_the_next_attempt_and_how_far_a_snapshot_is() -> None:
    assert build_row(TABLE, now=10.0)["next retry"] == "in 2.5 s"
    assert build_row(TABLE, now=99.0)["next retry"] == "now"
    assert build_row({**TABLE, "next_retry_ms": None}, now=1.0)["next retry"] is None
    snapshot = build_row({**TABLE, "state": "running", "snapshot_progress": 0.25}, now=1.0)
    assert snapshot["state"] == "running (snapshot 25%)"


def test_a_line_can_be_made_of_what_another_release_says() -> None:
    assert build_row({"table": "orders"}, now=1.0)["lag"] is None


@pytest.mark.parametrize("command", [["status"], ["pause", "orders"], ["resume", "orders"]])
def test_nobody_there_is_a_clear_error(command: list[str], capfd: Captured) -> None:
    assert run([*command, "--http", "http://127.0.0.1:1"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("error[daemon_unreachable]: No daemon answers at http://127.0.0.1:1")
    assert "tailerd run" in err


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:9464", "http://", "http://x:99999", "file:///etc/passwd", ""]
)
def test_what_is_no_address_is_refused(url: str, capfd: Captured) -> None:
    # An empty one is none given.
    expected = 2 if url else 1
    assert run(["pause", "orders", "--http", url or "http://127.0.0.1:1"]) == expected
    assert "error[" in capfd.readouterr().err


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff\xfe", b'{"tables": 3}'])
def test_something_else_at_the_address_is_no_daemon(body: bytes, capfd: Captured) -> None:
    with listening(body=body) as (url, _):
        assert run(["status", "--http", url]) == 1
    assert "error[daemon_refused]" in capfd.readouterr().err


def test_pause_and_resume_ask_for_just_that(capfd: Captured) -> None:
    with listening(body={"table": "a/b"}) as (url, answer):
        assert run(["pause", "a/b", "--http", f"{url}/"]) == 0
        assert run(["resume", "orders", "--http", url, "--wait", "0"]) == 0
    assert capfd.readouterr().out == "a/b is paused.\norders resumed.\n"
    assert [requested[:2] for requested in answer.requested] == [
        ("POST", "/pipelines/a%2Fb/pause"),
        ("POST", "/pipelines/orders/resume"),
    ]
    headers = answer.requested[0][2]
    assert headers["x-tailerd"].endswith("on the command line")
    assert headers["content-type"] == "application/json"
    assert "authorization" not in headers


def test_the_token_comes_from_the_environment_a_file_or_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    (tmp_path / "token").write_text("from-a-token-file\n")
    config = tmp_path / "tailerd.yaml"
    sent = []
    with listening(body={}) as (url, answer):
        config.write_text(
            f"engine: arrow\nhttp: {{listen: {url.removeprefix('http://')},"
            " token: from-the-configuration}\n"
            f"tables: {{orders: {{path: {tmp_path}, sink: {{kind: console}}}}}}\n"
        )
        run(["pause", "orders", "--config", str(config)])
        run(["pause", "orders", "--http", url, "--token-file", str(tmp_path / "token")])
        monkeypatch.setenv("TAILERD__HTTP__TOKEN", "from-the-environment")
        run(["pause", "orders", "--http", url, "--token-file", str(tmp_path / "token")])
        sent = [requested[2]["authorization"] for requested in answer.requested]
    assert sent == [
        "Bearer from-the-configuration",
        "Bearer from-a-token-file",
        "Bearer from-the-environment",
    ]
    assert "from-the" not in "".join(capfd.readouterr())


def test_a_token_follows_no_redirect(monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    monkeypatch.setenv("TAILERD__HTTP__TOKEN", "a-secret-of-the-daemon")
    with (
        listening(body={"tables": []}) as (elsewhere, stolen),
        listening(302, {}, {"Location": elsewhere}) as (url, _),
    ):
        assert run(["status", "--http", url]) == 1
    assert stolen.requested == []
    assert "a-secret" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("status", "code", "exit_status", "shown"),
    [
        (404, "unknown_pipeline", 2, "usage"),
        (400, "usage", 2, "usage"),
        (401, "unauthorized", 1, "daemon_refused"),
        (409, "missing_version", 3, "missing_version"),
        (503, "storage", 1, "storage"),
        (418, "of a later release", 1, "daemon_refused"),
    ],
)
def test_what_the_daemon_met_ends_the_command_as_if_it_was_met_here(
    status: int, code: str, exit_status: int, shown: str, capfd: Captured
) -> None:
    with listening(status, {"error": {"code": code, "message": "It is so."}}) as (url, _):
        assert run(["pause", "orders", "--http", url]) == exit_status
    assert capfd.readouterr().err.startswith(f"error[{shown}]: It is so.")


def test_a_page_of_somebody_else_is_quoted_briefly(capfd: Captured) -> None:
    with listening(500, b"<h1>" + b"x" * 10_000) as (url, _):
        assert run(["status", "--http", url]) == 1
    assert len(capfd.readouterr().err) < 500


@pytest.mark.parametrize(
    ("listen", "reason"), [("null", "switches the listener off"), ("127.0.0.1:0", "port 0")]
)
def test_a_configuration_without_an_address_says_so(
    tmp_path: Path, listen: str, reason: str, capfd: Captured
) -> None:
    config = tmp_path / "tailerd.yaml"
    config.write_text(
        f"http: {{listen: {listen}}}\nengine: arrow\n"
        f"tables: {{orders: {{path: {tmp_path}, sink: {{kind: console}}}}}}\n"
    )
    assert run(["status", "--config", str(config)]) == 1
    assert reason in capfd.readouterr().err
