"""Why no broker can be reached, where the first steps of a connection tell it."""

from __future__ import annotations

import socket
import ssl
from threading import Thread
from typing import Never

import pytest

from tailerd.sinks.kafka.connection import refusal


@pytest.mark.parametrize("raised", [None, ssl.SSLEOFError, ssl.SSLZeroReturnError])
def test_a_connection_closed_in_its_handshake_may_be_a_broker_that_restarts(
    raised: type[ssl.SSLError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if raised is not None:
        # Which of them this release of Python raises by itself is the first case.
        def fail(*_: object, **_named: object) -> Never:
            raise raised(6, "closed (EOF)")

        monkeypatch.setattr(ssl.SSLContext, "wrap_socket", fail)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = Thread(target=close_the_first, args=(listener,))
        closing.start()
        server = f"127.0.0.1:{listener.getsockname()[1]}"
        reported = refusal(server, {"security_protocol": "SSL"})
        closing.join()
    assert reported is not None
    assert reported.retryable
    assert "closed the connection during the TLS handshake" in str(reported)


def close_the_first(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        # All of the greeting: what is not read would reset the connection instead.
        connection.settimeout(0.2)
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            return
