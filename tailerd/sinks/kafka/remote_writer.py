"""Write a delivery's records in a process of an engine; the daemon completes it. Blocking.

The process writes with the daemon's producer id. For exactly-once delivery, it joins the daemon's
transaction, and the daemon commits it with the offset.
"""

from __future__ import annotations

import pickle
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kafka import KafkaProducer

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.sinks.kafka.acknowledgements import SendWindow
from tailerd.sinks.kafka.client_internals import (
    SharedTransaction,
    close_producer,
    join,
    keep_requests,
    wait_for_identity,
)
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.destinations import TableSchemas
from tailerd.sinks.kafka.producer_options import reveal_secrets
from tailerd.sinks.kafka.session import Session, WrittenRecords
from tailerd.sinks.kafka.topics import TopicFacts, Topics

_MAX_TABLES = 256
_schemas: OrderedDict[bytes, TableSchemas] = OrderedDict()
"""Cached schemas of tables, so that registries are not queried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsWriter:
    """Writes a delivery's rows in the process that reads them. Picklable.

    Attributes:
        config, pipeline: The sink's.
        start, end: Offsets of the delivery.
        facts: The daemon's topic metadata.
        window: Limit of unacknowledged records.
        transaction: The daemon's producer and transaction; None to use one of this process, whose
            late records no broker rejects.
        schemas: The schemas that the daemon knows, by subject.
    """

    config: KafkaSinkConfig
    pipeline: PipelineIdentity
    start: Offset
    end: Offset
    facts: tuple[TopicFacts, ...]
    window: SendWindow
    transaction: SharedTransaction | None
    schemas: Mapping[str, str] = field(default_factory=dict)

    @property
    def destination(self) -> str:
        """The brokers."""
        return ",".join(self.config.bootstrap_servers)

    def __call__(self, batches: Iterator[ChangeBatch]) -> WrittenRecords:
        """Write all rows; returns when they are acknowledged.

        Raises:
            TailerdError: Some rows may be written; those of a transaction are not committed.
        """
        identity = None if self.transaction is None else self.transaction.transactional_id
        opened = take_producer(self.config, identity)
        try:
            written = self._write_batches(opened, batches)
        except BaseException:
            opened.close()
            raise
        give_back(self.config, identity, opened)
        return written

    def _write_batches(
        self, opened: IdleProducer, batches: Iterator[ChangeBatch]
    ) -> WrittenRecords:
        began = time.monotonic()
        if self.transaction is not None:
            join(opened.client, self.transaction)
        schemas = _make_schemas(self.config, self.pipeline.table)
        schemas.known.learn(self.schemas, is_confirmed=True)
        topics = Topics(opened.connection)
        topics.learn(self.facts)
        session = Session(
            self.config,
            self.pipeline,
            connection=opened.connection,
            topics=topics,
            schemas=schemas,
            client=opened.client,
            window=self.window,
        )
        session.begin()
        session.describe(self.start.table_id)
        for batch in batches:
            if batch.num_rows:
                session.send(self.start, batch)
        session.send_rest(self.end)
        return session.finish_shared(time.monotonic() - began)


def _make_schemas(config: KafkaSinkConfig, table: str) -> TableSchemas:
    key = pickle.dumps((config, table))
    found = _schemas.pop(key, None) or TableSchemas(config, table)
    _schemas[key] = found
    if len(_schemas) > _MAX_TABLES:
        _schemas.popitem(last=False)[1].close()
    return found


# Opening one takes a tenth of a second, as long as a small delivery. Such a process handles one
# delivery at a time, of any table. A producer that failed, or whose delivery did not complete, is
# closed and never reused: its buffered records must not be sent after the repeated delivery.

_MAX_OPEN = 4
"""Maximum number of idle producers, one per kind."""
_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 15.0
_idle: dict[tuple[object, ...], IdleProducer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleProducer:
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


def take_producer(config: KafkaSinkConfig, transactional_id: str | None) -> IdleProducer:
    """Return an idle producer of this process, or open one; the caller has exclusive use.

    Args:
        transactional_id: Of the transaction to join; None for none.

    Raises:
        TailerdError: The brokers cannot be reached, or refuse.
    """
    idle = _idle.pop(_likeness(config, transactional_id), None)
    return _open_producer(config, transactional_id) if idle is None else idle


def give_back(config: KafkaSinkConfig, transactional_id: str | None, opened: IdleProducer) -> None:
    """Keep a producer for the next delivery; all its records must be acknowledged."""
    _idle[_likeness(config, transactional_id)] = opened
    while len(_idle) > _MAX_OPEN:
        _idle.pop(next(iter(_idle))).close()


def _open_producer(config: KafkaSinkConfig, transactional_id: str | None) -> IdleProducer:
    connection = Connection(config)
    client = connection.producer(transactional_id)
    if transactional_id is not None:
        backoff_ms = connection.number("retry_backoff_ms", 20)
        keep_requests(client, backoff_ms / 1000)
    else:
        with connection.calls("assigns no producer id"):
            wait_for_identity(client, seconds=_OPEN_SECONDS)
    return IdleProducer(connection=connection, client=client)


def _likeness(config: KafkaSinkConfig, transactional_id: str | None) -> tuple[object, ...]:
    options = tuple(sorted(reveal_secrets(config.producer).items()))
    servers = tuple(config.bootstrap_servers)
    # A producer that joins transactions can join those of any id.
    return servers, options, transactional_id is None
