"""Ports of the loopback interface for servers that must keep theirs over a restart."""

from __future__ import annotations

import random
import socket

# Below the range that the kernel takes ports of outgoing connections from: a stopped server finds
# its port free again.
_RANGE = range(15_000, 32_000)
_given: set[int] = set()


def free_port() -> int:
    """Return a loopback port that nobody listens on and that was not returned before."""
    while True:
        port = random.choice(_RANGE)
        if port in _given:
            continue
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def require_free_port(port: int) -> None:
    """Raise SystemExit, which says what to do, if somebody listens on a loopback port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise SystemExit(
            f"error: port {port} cannot be opened: {error.strerror}. If a broker still runs there,"
            " stop it (`kill %%` in its shell), or give another --port."
        ) from error
