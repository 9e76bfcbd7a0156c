"""Producers of an engine's process, kept open between deliveries. Blocking.

Opening one takes a tenth of a second, as long as a small delivery. Such a process handles one
delivery at a time, of any table. A producer that failed, or whose delivery did not complete, is
closed and never reused: its buffered records must not be sent after the repeated delivery.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka import KafkaProducer

from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection, close_producer
from tailerd.sinks.kafka.producer_options import revealed
from tailerd.sinks.kafka.producer_state import wait_for_identity
from tailerd.sinks.kafka.sender_requests import keep_requests

_MOST_OPEN = 4
"""Maximum number of idle producers, one per kind."""
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 15.0
_idle: dict[tuple[object, ...], KeptProducer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProducer:
    """An open producer.

    Attributes:
        connection: To its brokers.
        client: kafka-python's.
    """

    connection: Connection
    client: KafkaProducer

    def close(self) -> None:
        """Close it and drop unsent records."""
        close_producer(self.client, seconds=_CLOSE_SECONDS, is_clean=False)


def take_producer(config: KafkaSinkConfig, transactional_id: str | None) -> KeptProducer:
    """Return an idle producer of this process, or open one; the caller has exclusive use.

    Args:
        transactional_id: Of the transaction to join; None for none.

    Raises:
        TailerdError: The brokers cannot be reached, or refuse.
    """
    kept = _idle.pop(_likeness(config, transactional_id), None)
    return _opened(config, transactional_id) if kept is None else kept


def give_back(config: KafkaSinkConfig, transactional_id: str | None, opened: KeptProducer) -> None:
    """Keep a producer for the next delivery; all its records must be acknowledged."""
    _idle[_likeness(config, transactional_id)] = opened
    while len(_idle) > _MOST_OPEN:
        _idle.pop(next(iter(_idle))).close()


def _opened(config: KafkaSinkConfig, transactional_id: str | None) -> KeptProducer:
    connection = Connection(config)
    client = connection.producer(transactional_id)
    if transactional_id is not None:
        backoff_ms = connection.number("retry_backoff_ms", 20)
        keep_requests(client, backoff_ms / 1000)
    else:
        with connection.calls("assigns no producer id"):
            wait_for_identity(client, seconds=_OPEN_SECONDS)
    return KeptProducer(connection=connection, client=client)


def _likeness(config: KafkaSinkConfig, transactional_id: str | None) -> tuple[object, ...]:
    options = tuple(sorted(revealed(config.producer).items()))
    servers = tuple(config.bootstrap_servers)
    # A producer that joins transactions can join those of any id.
    return servers, options, config.batching, transactional_id is None
