"""The proxy forwards, and breaks what it is told to break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kafka.ports import free_port
from tests.kafka.proxy import Proxy


@contextmanager
def echo_server() -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers what it hears; also everything it heard."""
    heard: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while data := connection.recv(65536):
                        heard.append(data)
                        connection.sendall(data)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.fixture
def proxied() -> Iterator[tuple[Proxy, list[bytes], socket.socket]]:
    port = free_port()
    with (
        echo_server() as (target, heard),
        Proxy(port, target) as proxy,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        yield proxy, heard, client


def test_a_cut_resets_the_connections(proxied: tuple[Proxy, list[bytes], socket.socket]) -> None:
    proxy, _, client = proxied
    proxy.cut()
    assert proxy.cuts == 1
    assert is_broken(client)


def test_a_request_is_cut_in_its_middle(proxied: tuple[Proxy, list[bytes], socket.socket]) -> None:
    proxy, heard, client = proxied
    proxy.cut_every(1000, 1000)
    client.sendall(b"x" * 5000)
    assert is_broken(client)
    assert proxy.cuts == 1
    assert len(b"".join(heard)) <= len(b"hello") + 1000


def test_an_answer_is_lost_though_the_request_arrived(
    proxied: tuple[Proxy, list[bytes], socket.socket],
) -> None:
    proxy, heard, client = proxied
    proxy.lose_answer_after(4)
    client.sendall(b"done?")
    assert is_broken(client)
    assert heard[-1] == b"done?"


def is_broken(client: socket.socket) -> bool:
    """Read to the end; whether it came, by a reset or without, and not by a timeout."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
