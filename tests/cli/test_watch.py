"""`tailerd status --watch` goes on while the daemon restarts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.cli.commands import started
from tests.cli.test_daemon_client import STATUS


class Answer(BaseHTTPRequestHandler):
    """Answers every request with the status."""

    def do_GET(self) -> None:
        body = json.dumps(STATUS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def daemon(port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_daemon_that_is_not_there_yet_and_one_that_restarts_are_waited_for() -> None:
    port = free_port()
    options = ("--watch", "--interval", "0.1", "--json", "--http", f"http://127.0.0.1:{port}")
    with started("status", *options) as process:
        for _ in range(2):
            with daemon(port):
                assert json.loads(process.line(60))["table"] == "orders"
            # What was asked before the end may still be on its way.
            while not process.is_quiet(0.5):
                pass
        process.process.terminate()
        _, errors = process.end()
    assert "No daemon answers" in errors
    assert "Retrying every 0.1 s." in errors
