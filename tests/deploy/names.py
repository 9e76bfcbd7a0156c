"""Names of a cluster's Services: a server of DNS that answers with the addresses of their pods."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

_HEADER = struct.Struct(">HHHHHH")
_ADDRESS = struct.Struct(">HHHIH4s")
_IS_RESPONSE, _NO_SUCH_NAME, _TYPE_A = 0x8400, 3, 1
_TO_THE_QUESTION = 0xC00C


def answer(query: bytes, find: Callable[[str], list[str]]) -> bytes:
    """Return the response to a query of DNS (RFC 1035) about one name.

    Args:
        query: The message.
        find: Returns the IPv4 addresses of a name.
    """
    labels, at = [], _HEADER.size
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode())
        at += 1 + size
    question = query[_HEADER.size : at + 5]
    addresses = find(".".join(labels))
    flags = _IS_RESPONSE | (0 if addresses else _NO_SUCH_NAME)
    if struct.unpack(">H", question[-4:-2])[0] != _TYPE_A:
        addresses = []
    header = _HEADER.pack(int.from_bytes(query[:2], "big"), flags, 1, len(addresses), 0, 0)
    records = [
        _ADDRESS.pack(_TO_THE_QUESTION, _TYPE_A, 1, 1, 4, socket.inet_aton(each))
        for each in addresses
    ]
    return header + question + b"".join(records)


class NameServer:
    """Answers on UDP port 53 of an address until it is closed."""

    def __init__(self, address: str, find: Callable[[str], list[str]]) -> None:
        """Start it; `find` returns the IPv4 addresses of a name."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._find = find
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop answering, and free the port, which the waiting thread would keep."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                query, client = self._socket.recvfrom(512)
                if not query:
                    return
                self._socket.sendto(answer(query, self._find), client)
