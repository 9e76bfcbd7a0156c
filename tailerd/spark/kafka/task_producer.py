"""The producers of a Python worker on an executor, kept open between micro-batches. Blocking.

Opening one takes a tenth of a second, as long as a small micro-batch. A worker is a process that
serves one task at a time. A producer that failed, or whose task did not come to its end, is closed
and never used again: what it still has must not come behind a repetition.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka import KafkaProducer

from tailerd.sinks.kafka.batch_producer import BatchProducer
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection, close_producer
from tailerd.sinks.kafka.produce_request import Producer
from tailerd.sinks.kafka.producer_options import revealed
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.record_producer import RecordProducer
from tailerd.sinks.kafka.shared_transaction import prepare_to_join
from tailerd.sinks.kafka.topics import Topics

_MOST_OPEN = 4
"""Groups with other brokers take turns in a worker; more than this is one too many."""
_CLOSE_SECONDS = 5.0
_idle: dict[tuple[object, ...], TaskProducer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProducer:
    """An open producer, and what is known of topics on its brokers.

    Attributes:
        connection, topics: To these brokers.
        client: kafka-python's.
        sender: Takes records for it.
    """

    connection: Connection
    topics: Topics
    client: KafkaProducer
    sender: Producer

    def close(self) -> None:
        """Drop what is not sent."""
        close_producer(self.client, seconds=_CLOSE_SECONDS, is_clean=False)


def take_producer(config: KafkaSinkConfig, transactional_id: str | None) -> TaskProducer:
    """Return an idle producer of this worker, or open one; the caller has it for itself.

    Raises:
        TailerdError: The brokers cannot be reached, or refuse.
    """
    kept = _idle.pop(_likeness(config, transactional_id), None)
    return _opened(config, transactional_id) if kept is None else kept


def give_back(config: KafkaSinkConfig, transactional_id: str | None, opened: TaskProducer) -> None:
    """Keep a producer for the next task; everything it was given is acknowledged."""
    _idle[_likeness(config, transactional_id)] = opened
    while len(_idle) > _MOST_OPEN:
        _idle.pop(next(iter(_idle))).close()


def _opened(config: KafkaSinkConfig, transactional_id: str | None) -> TaskProducer:
    connection = Connection(config)
    client = connection.producer(transactional_id)
    if transactional_id is not None:
        backoff_ms = connection.number("retry_backoff_ms", 20)
        prepare_to_join(client, backoff_seconds=backoff_ms / 1000)
    if connection.is_finished_batches:
        sender: Producer = BatchProducer(client, compression=Compression(connection.compression))
    else:
        sender = RecordProducer(client)
    return TaskProducer(
        connection=connection, topics=Topics(connection), client=client, sender=sender
    )


def _likeness(config: KafkaSinkConfig, transactional_id: str | None) -> tuple[object, ...]:
    options = tuple(sorted(revealed(config.producer).items()))
    servers = tuple(config.bootstrap_servers)
    return servers, options, config.batching, transactional_id
