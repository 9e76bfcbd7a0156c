"""Find out why no broker can be reached. Blocking.

kafka-python treats a wrong certificate or password like an unavailable broker: it retries until it
times out, and reports only that no broker is available. So the first steps of a connection are
repeated here one by one: address, TLS, and authentication by PLAIN or SCRAM.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kafka.net.sasl import get_sasl_mechanism

from tailerd.config.values import parse_address
from tailerd.errors import SinkError, SinkRefusedError, TailerdError
from tailerd.sinks.kafka.errors import CLOSED_TLS

_SECONDS = 5.0
_HANDSHAKE, _AUTHENTICATE = 17, 36
_CORRELATION = 1
_LARGEST_ANSWER = 1024**2
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_TLS_HINT = "Check ssl_cafile, ssl_certfile and ssl_keyfile under `producer`."
_LOGIN_HINT = "Check sasl_mechanism, sasl_plain_username and sasl_plain_password under `producer`."

Options = Mapping[str, bool | int | float | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A broker's response to an authentication request.

    Attributes:
        code: Error code; 0 if there is no error.
        message: Reason of an error.
        token: Input for the mechanism's next step.
    """

    code: int
    message: str
    token: bytes


def refusal(server: str, options: Options) -> TailerdError | None:
    """Return why a broker rejects this client; None if it does not, or cannot be reached.

    Args:
        server: host:port.
        options: The producer's options.
    """
    protocol = str(options.get("security_protocol") or "PLAINTEXT")
    address = parse_address(server)
    try:
        with socket.create_connection((address.host, address.port), _SECONDS) as plain:
            if "SSL" not in protocol:
                return _login_refusal(plain, server, options) if "SASL" in protocol else None
            context = _context(options)
            with context.wrap_socket(plain, server_hostname=address.host) as secured:
                return _login_refusal(secured, server, options) if "SASL" in protocol else None
    except CLOSED_TLS:
        # A listener without TLS does this, and also a broker that is stopping: may be transient.
        return SinkError(
            f"Kafka at {server} closed the connection during the TLS handshake.",
            remedy="Check whether the broker is restarting, and whether this port uses TLS.",
        )
    except ssl.SSLError as error:
        return SinkRefusedError(
            f"Kafka at {server} and this client cannot agree on TLS: {error.reason}:"
            f" {getattr(error, 'verify_message', '') or 'check the certificate and the port'}.",
            remedy=_TLS_HINT,
        )
    except (OSError, struct.error, ValueError):
        # Unreachable, or an unexpected response: may be transient.
        return None


def _context(options: Options) -> ssl.SSLContext:
    cafile, certfile = options.get("ssl_cafile"), options.get("ssl_certfile")
    context = ssl.create_default_context(cafile=str(cafile) if cafile else None)
    if options.get("ssl_check_hostname") is False:
        context.check_hostname = False
    if certfile:
        keyfile, password = options.get("ssl_keyfile"), options.get("ssl_password")
        context.load_cert_chain(
            str(certfile),
            str(keyfile) if keyfile else None,
            str(password) if password else None,
        )
    return context


def _login_refusal(
    connection: socket.socket, server: str, options: Options
) -> SinkRefusedError | None:
    mechanism = str(options.get("sasl_mechanism"))
    if mechanism not in _MECHANISMS:
        return None
    _send(connection, _HANDSHAKE, 1, _text(mechanism))
    (code,) = struct.unpack_from(">h", _receive(connection))
    if code:
        return SinkRefusedError(
            f"Kafka at {server} does not support authentication by {mechanism}.", remedy=_LOGIN_HINT
        )
    login = get_sasl_mechanism(mechanism)(host=server, **options)
    while not login.is_done():
        token = login.auth_bytes()
        _send(connection, _AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
        answer = _parsed(_receive(connection))
        if answer.code:
            return SinkRefusedError(
                f"Kafka at {server} refuses the authentication of"
                f" {options.get('sasl_plain_username')!r}: {answer.message.rstrip('.')}.",
                remedy=_LOGIN_HINT,
            )
        login.receive(answer.token)
    return None


def _send(connection: socket.socket, api: int, version: int, body: bytes) -> None:
    header = struct.pack(">hhi", api, version, _CORRELATION) + _text("tailerd")
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _receive_exactly(connection, 4))
    if not 4 <= size <= _LARGEST_ANSWER:
        raise ValueError("not an answer of a broker")
    return _receive_exactly(connection, size)[4:]


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return data


def _parsed(body: bytes) -> _Answer:
    code, size = struct.unpack_from(">hh", body)
    start = 4 + max(size, 0)
    (token_size,) = struct.unpack_from(">i", body, start)
    token = body[start + 4 : start + 4 + max(token_size, 0)]
    return _Answer(code=code, message=body[4:start].decode(), token=token)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
