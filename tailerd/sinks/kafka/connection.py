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

# Its messages reach whoever configures logging, but never standard error by themselves: what goes
# wrong is told once, as an error of ours.
logging.getLogger("kafka").addHandler(logging.NullHandler())

_DEFAULTS = {
    "bootstrap_timeout_ms": 5_000,
    # A stop must not wait for metadata that do not come.
    "max_block_ms": 15_000,
    "metrics_enabled": False,
    "allow_auto_create_topics": False,
    # What a first transaction waits while the one before is still being ended.
    "retry_backoff_ms": 20,
    # As Kafka's own clients: a broker that is back is noticed within a second, not half a minute.
    "reconnect_backoff_max_ms": 1000,
}
DEFAULT_MAX_REQUEST_SIZE = 1024**2
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
DEFAULT_DELIVERY_TIMEOUT_MS = 60_000


class Connection:
    """Where the brokers are and how to reach them."""

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
        """Return an option that is a number, or what holds without it."""
        value = self._options.get(name)
        return value if isinstance(value, int) else default

    @property
    def compression(self) -> str:
        """Name of the compression, `none` without."""
        return str(self._options.get("compression_type") or "none")

    def producer(self, transactional_id: str | None) -> KafkaProducer:
        """Open a producer; with an id it still has to be initialised.

        Raises:
            TailerdError: The brokers cannot be reached, or refuse.
        """
        options = {**_DEFAULTS, "delivery_timeout_ms": DEFAULT_DELIVERY_TIMEOUT_MS, **self._options}
        if self.is_finished_batches:
            # Batches come compressed; the client would ask for libraries it does not need.
            options["compression_type"] = None
        with self._opening():
            producer = KafkaProducer(
                bootstrap_servers=self._servers,
                transactional_id=transactional_id,
                enable_idempotence=True,
                **{k: v for k, v in options.items() if k != "enable_idempotence"},
            )
        producer._sender._record_exceptions_fn = _one_error
        return producer

    @contextmanager
    def consumer(self, *, is_committed: bool = True) -> Iterator[KafkaConsumer]:
        """Open a consumer, by default of committed records, that belongs to no group."""
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
        """Open a client for topics."""
        with self._opening():
            client = KafkaAdminClient(bootstrap_servers=self._servers, **self._common())
        try:
            yield client
        finally:
            client.close()

    def calls(self, what: str) -> AbstractContextManager[None]:
        """Map what kafka-python raises inside; `what` goes on after `Kafka at ADDRESS`."""
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
    """Return the error of each record of a refused batch: the batch's, with the first reason.

    The client gives records at fault one kind of error, whatever it was, and the others none.
    """
    reason = next((text for _, text in records or () if text), message)
    told = type(error)(reason) if reason else error
    return lambda _: told


def close_producer(producer: KafkaProducer, *, seconds: float, is_clean: bool) -> None:
    """End a producer and its thread within about `seconds`; what is unsent is dropped.

    Args:
        producer: Any; closing twice is closing once.
        seconds: How long to wait for its thread.
        is_clean: Whether everything was acknowledged, so that it may end in good order.
    """
    sender = producer._sender
    if not is_clean:
        # Without this the client would first try to send what is left.
        sender.force_close()
        sender.join(seconds)
    with suppress(KafkaError):
        # Nothing is lost by an error here: what counts was acknowledged before.
        producer.close(timeout=seconds if is_clean else 0)
    if sender.is_alive():
        sender.force_close()


def metadata_now(producer: KafkaProducer, *, seconds: float) -> ClusterMetadata | None:
    """Return what brokers say now about the topics a producer writes; None where none answers."""
    metadata: ClusterMetadata = producer._metadata
    answered = threading.Event()
    metadata.request_update().add_both(lambda *_: answered.set())
    return metadata if answered.wait(seconds) else None


def has_metadata_of(producer: KafkaProducer, topic: str) -> bool:
    """Return whether a producer knows a topic's partitions."""
    return producer._metadata.partitions_for_topic(topic) is not None
