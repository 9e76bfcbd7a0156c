"""Opening and closing kafka-python's clients, with the options of a sink. Blocking."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.net.sasl import get_sasl_mechanism

from tailerd.config.values import parse_address
from tailerd.errors import SinkError, SinkRefusedError, TailerdError
from tailerd.sinks.kafka.client_internals import prepare
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.errors import CLOSED_TLS, kafka_calls
from tailerd.sinks.kafka.producer_options import CONNECTION, SECRETS, reveal_secrets

# Its messages appear only if logging is configured, never on standard error by default: failures
# are reported once, as a tailerd error.
logging.getLogger("kafka").addHandler(logging.NullHandler())

_DEFAULTS = {
    "bootstrap_timeout_ms": 5_000,
    # A stop must not wait long for metadata.
    "max_block_ms": 15_000,
    "metrics_enabled": False,
    "allow_auto_create_topics": False,
    # Pause of a first transaction while the previous one is still being completed.
    "retry_backoff_ms": 20,
    # As Kafka's own clients: a returning broker is detected within a second, not half a minute.
    "reconnect_backoff_max_ms": 1000,
}
DEFAULT_MAX_REQUEST_SIZE = 1024**2
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
DEFAULT_DELIVERY_TIMEOUT_MS = 60_000
DEFAULT_REQUEST_TIMEOUT_MS = 30_000


class Connection:
    """The brokers' addresses and the options to connect to them."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        self._servers = list(config.bootstrap_servers)
        self._options = reveal_secrets(config.producer)
        self.secrets = tuple(str(self._options[n]) for n in SECRETS if self._options.get(n))

    @property
    def address(self) -> str:
        """The brokers, for messages."""
        return ",".join(self._servers)

    def number(self, name: str, default: int) -> int:
        """Return a numeric option, or its default."""
        value = self._options.get(name)
        return value if isinstance(value, int) else default

    @property
    def compression(self) -> str:
        """Name of the compression; `none` if there is none."""
        return str(self._options.get("compression_type") or "none")

    def producer(self, transactional_id: str | None) -> KafkaProducer:
        """Open a producer; one with a transactional id still has to be initialised.

        Raises:
            TailerdError: The brokers cannot be reached, or refuse.
        """
        options = {**_DEFAULTS, "delivery_timeout_ms": DEFAULT_DELIVERY_TIMEOUT_MS, **self._options}
        # Batches are already compressed; the client would require libraries it does not need.
        options["compression_type"] = None
        with self._opening():
            producer = KafkaProducer(
                bootstrap_servers=self._servers,
                transactional_id=transactional_id,
                enable_idempotence=True,
                **{k: v for k, v in options.items() if k != "enable_idempotence"},
            )
        prepare(producer)
        return producer

    @contextmanager
    def consumer(self, *, is_committed: bool = True) -> Iterator[KafkaConsumer]:
        """Open a consumer without a group, by default of committed records."""
        with self._opening():
            consumer = KafkaConsumer(
                bootstrap_servers=self._servers,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed" if is_committed else "read_uncommitted",
                fetch_max_wait_ms=50,
                allow_auto_create_topics=False,
                **self._common(),
            )
        try:
            yield consumer
        finally:
            consumer.close(autocommit=False, timeout_ms=2000)

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """Open an admin client."""
        with self._opening():
            client = KafkaAdminClient(bootstrap_servers=self._servers, **self._common())
        try:
            yield client
        finally:
            client.close()

    def calls(self, what: str) -> AbstractContextManager[None]:
        """Map errors of kafka-python inside the context; `what` follows `Kafka at ADDRESS`."""
        return kafka_calls(f"Kafka at {self.address} {what}", secrets=self.secrets)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        with self.calls("cannot be reached"):
            try:
                yield
            except KafkaTimeoutError:
                for server in self._servers:
                    if (reason := refusal(server, self._options)) is not None:
                        raise reason from None
                raise

    def _common(self) -> dict[str, object]:
        options = {**_DEFAULTS, **self._options}
        return {name: value for name, value in options.items() if name in CONNECTION}


# kafka-python treats a wrong certificate or password like an unavailable broker: it retries until
# it times out, and reports only that no broker is available. So the first steps of a connection
# are repeated here one by one: address, TLS, and authentication by PLAIN or SCRAM.

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
        answer = _parse_answer(_receive(connection))
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


def _parse_answer(body: bytes) -> _Answer:
    code, size = struct.unpack_from(">hh", body)
    start = 4 + max(size, 0)
    (token_size,) = struct.unpack_from(">i", body, start)
    token = body[start + 4 : start + 4 + max(token_size, 0)]
    return _Answer(code=code, message=body[4:start].decode(), token=token)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
