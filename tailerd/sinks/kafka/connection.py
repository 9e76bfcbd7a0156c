"""Opening and closing kafka-python's clients, with the options of a sink. Blocking."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.errors import KafkaError, KafkaTimeoutError

from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.diagnosis import refusal
from tailerd.sinks.kafka.errors import kafka_calls
from tailerd.sinks.kafka.producer_options import CONNECTION, SECRETS, revealed
from tailerd.sinks.kafka.producer_state import keep_batches, keep_identity

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
POLL_MS = 50
"""Of a consumer that reads to the end: a transaction ends with a marker, which no poll returns."""


class Connection:
    """The brokers' addresses and the options to connect to them."""

    def __init__(self, config: KafkaSinkConfig) -> None:
        self._servers = list(config.bootstrap_servers)
        self._options = revealed(config.producer)
        self.secrets = tuple(str(self._options[n]) for n in SECRETS if self._options.get(n))
        self.is_finished_batches = config.batching == "batches"

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
        if self.is_finished_batches:
            # Batches are already compressed; the client would require libraries it does not need.
            options["compression_type"] = None
        with self._opening():
            producer = KafkaProducer(
                bootstrap_servers=self._servers,
                transactional_id=transactional_id,
                enable_idempotence=True,
                **{k: v for k, v in options.items() if k != "enable_idempotence"},
            )
        producer._sender._record_exceptions_fn = _one_error
        keep_identity(producer)
        keep_batches(producer)
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


def _one_error(
    error: KafkaError, records: Sequence[tuple[int, str | None]] | None, message: str | None
) -> Callable[[int], KafkaError]:
    """Return the error of each record of a rejected batch: the batch's, with the first reason.

    The client itself assigns faulty records one fixed kind of error, and the others none.
    """
    reason = next((text for _, text in records or () if text), message)
    rejection = type(error)(reason) if reason else error
    return lambda _: rejection


def close_producer(producer: KafkaProducer, *, seconds: float, is_clean: bool) -> None:
    """Close a producer and its thread within about `seconds`; unsent records are dropped.

    Args:
        producer: Any; closing is idempotent.
        seconds: How long to wait for its thread.
        is_clean: Whether everything was acknowledged, so that it may close gracefully.
    """
    sender = producer._sender
    if not is_clean:
        # Without this the client would first try to send the remaining records.
        sender.force_close()
        sender.join(seconds)
    with suppress(KafkaError):
        # An error here loses nothing: everything was acknowledged before.
        producer.close(timeout=seconds if is_clean else 0)
    if sender.is_alive():
        sender.force_close()


def metadata_now(producer: KafkaProducer, *, seconds: float) -> ClusterMetadata | None:
    """Return the current metadata of a producer's topics; None if no broker answers."""
    metadata: ClusterMetadata = producer._metadata
    answered = threading.Event()
    metadata.request_update().add_both(lambda *_: answered.set())
    return metadata if answered.wait(seconds) else None


def has_metadata_of(producer: KafkaProducer, topic: str) -> bool:
    """Return whether a producer has metadata of a topic's partitions."""
    return producer._metadata.partitions_for_topic(topic) is not None
