"""One open producer: deliveries through it, until it is closed or one of them fails. Blocking.

After a failure it is closed and never reused: kafka-python's producer may be in an unrecoverable
state, and its buffered records must not be sent after the repeated delivery.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from kafka import KafkaProducer
from kafka.errors import InvalidTimestampError, KafkaError, ProducerFencedError

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import (
    BugError,
    ConfigError,
    IncompatibleSchemaError,
    SinkFencedError,
    SinkRefusedError,
    TailerdError,
    TopicRecreatedError,
)
from tailerd.records.base import Records
from tailerd.sinks.kafka.acknowledgements import (
    Acknowledgements,
    NoProgressError,
    SendWindow,
    too_slow,
)
from tailerd.sinks.kafka.batch_coalescing import BatchCoalescer, Versioned
from tailerd.sinks.kafka.batch_producer import BatchProducer
from tailerd.sinks.kafka.client_internals import (
    SharedTransaction,
    close_producer,
    continue_from,
    continue_identity,
    has_metadata,
    known_sequences,
    mark_started,
    read_identity,
    refresh_metadata,
    wait_for_identity,
)
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import (
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_REQUEST_TIMEOUT_MS,
    Connection,
)
from tailerd.sinks.kafka.dead_letters import make_dead_letters, takes_more_now
from tailerd.sinks.kafka.destinations import TableDestinations, TableSchemas
from tailerd.sinks.kafka.errors import find_reason, map_error
from tailerd.sinks.kafka.offset_topic import PARTITION, check_offset_topic, new_offset_topic
from tailerd.sinks.kafka.produce_request import ProduceRequest, control_record
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.record_batches.record_batch import OversizeRecord
from tailerd.sinks.kafka.routing import (
    Destination,
    Router,
    TopicShape,
    too_far_ahead,
)
from tailerd.sinks.kafka.topics import MAX_AGE_SECONDS, NewTopic, TopicFacts, Topics
from tailerd.sinks.kafka.transactions import Claim, Transactions, claim_again
from tailerd.sinks.topics.control_records import CommitMarkers, ControlRecord
from tailerd.sinks.topics.dead_letters import TOO_LARGE

_CLOSE_SECONDS = 5.0
_OPEN_SECONDS = 15.0
_REFRESH_SECONDS = 1.0
_CHECK_EVERY_SECONDS = 2.0


class Session:
    """Sends the changes of one table, one delivery at a time."""

    def __init__(
        self,
        config: KafkaSinkConfig,
        pipeline: PipelineIdentity,
        *,
        connection: Connection,
        topics: Topics,
        schemas: TableSchemas,
        client: KafkaProducer,
        window: SendWindow,
        transactions: Transactions | None = None,
    ) -> None:
        """Initialize with an open producer.

        Args:
            config: The sink's section.
            pipeline: The pipeline that writes.
            connection, topics, schemas: The sink's.
            client: The producer.
            window: Limit of unacknowledged records; adapted to the connection.
            transactions: The producer's; None if it has none, or if another process ends them.
        """
        self._config, self._pipeline = config, pipeline
        self._table = pipeline.table
        self._connection, self._topics, self._schemas = connection, topics, schemas
        self._router = Router(config, pipeline.table)
        self._records: TableDestinations | None = None
        self._table_id = ""
        self._markers: CommitMarkers | None = None
        self._delivery: Acknowledgements | None = None
        self._coalescer = BatchCoalescer()
        self._set_aside: Counter[tuple[str, str]] = Counter()
        # Time and version of this delivery's commit with the latest time.
        self._latest = (0, 0)
        self._used, self._checked_at = set[str](), time.monotonic()
        self._client, self._transactions = client, transactions
        self._window = window
        # Whether another process may be writing in a transaction of this one.
        self._is_shared = False
        self._producer = BatchProducer(
            self._client, compression=Compression(connection.compression)
        )

    @classmethod
    def open(
        cls,
        config: KafkaSinkConfig,
        pipeline: PipelineIdentity,
        *,
        connection: Connection,
        topics: Topics,
        schemas: TableSchemas,
        window: SendWindow,
        before: Claim | None = None,
        is_latest: Callable[[], bool] = lambda: True,
    ) -> Self:
        """Open a producer; for exactly-once, fence off others with its transactional id.

        For at-least-once, only late records of this process's earlier sessions are rejected.

        Args:
            config, pipeline, connection, topics, schemas, window: As in `__init__`.
            before: This process's claim in a session that failed.
            is_latest: As in `Transactions.claim`.

        Raises:
            TailerdError: The brokers cannot be reached, or refuse.
        """
        identity = transactional_id(config, pipeline)
        client = connection.producer(identity)
        transactions: Transactions | None = None
        try:
            if identity is not None:
                transactions = Transactions(
                    client, transactional_id=identity, connection=connection
                )
                transactions.claim(before, is_latest)
            elif before is not None:
                with connection.calls("assigns no producer id"):
                    continue_identity(
                        client, before.producer_id, before.epoch, seconds=_OPEN_SECONDS
                    )
        except BaseException:
            close_producer(client, seconds=_CLOSE_SECONDS, is_clean=False)
            raise
        return cls(
            config,
            pipeline,
            connection=connection,
            topics=topics,
            schemas=schemas,
            client=client,
            window=window,
            transactions=transactions,
        )

    def prepare(self, table_id: str) -> None:
        """Check or create the topics, before the first delivery.

        Raises:
            TailerdError: A topic is missing and may not be created, or may not be written.
        """
        self._topics.forget()
        wanted = list_required_topics(self._config, self._table)
        if self._topics.expected.keys() - wanted.keys():
            # Topics chosen by a column are otherwise not checked before there are rows for them.
            self._topics.check_ids()
        found = self._topics.ensure(wanted)
        with self._connection.calls("cannot describe its topics"):
            for topic in found:
                # Fetch metadata now, not in the first delivery.
                self._client.partitions_for(topic)
                self._used.add(topic)
        if self._config.stores_offsets:
            check_offset_topic(found[self._config.offsets_topic])
        self.describe(table_id)

    def describe(self, table_id: str) -> None:
        """Set the table id for which records are encoded."""
        config = self._config
        if config.transaction_topic is not None and self._markers is None:
            topic = config.name_topic(config.transaction_topic, self._table)
            self._markers = CommitMarkers(topic, self._table)
        self._table_id = table_id
        self._records = self._schemas.for_table(table_id)

    def begin(self) -> Acknowledgements:
        """Start a delivery; another thread may abandon it through the returned object."""
        self._coalescer = BatchCoalescer()
        self._set_aside.clear()
        self._latest = (0, 0)
        timeout_ms = self._connection.number("delivery_timeout_ms", DEFAULT_DELIVERY_TIMEOUT_MS)
        self._delivery = Acknowledgements(
            window=self._window,
            timeout_seconds=timeout_ms / 1000,
            explain=self._explain_error,
            check=self.check_brokers,
        )
        return self._delivery

    def check_brokers(self) -> TailerdError | None:
        """Return an error if a topic was deleted or recreated; takes bounded time.

        Returns None if the brokers cannot be reached.
        """
        self._checked_at = time.monotonic()
        metadata = refresh_metadata(self._client, seconds=_REFRESH_SECONDS)
        if metadata is None or all(
            str(metadata.topic_id(name)) == expected
            for name, expected in self._topics.ids.items()
            if name in self._used
        ):
            return None
        try:
            self._topics.check_ids()
        except TopicRecreatedError as error:
            return error
        except TailerdError:
            return None
        return None

    def _check_topics(self) -> None:
        """Check, every few seconds, that the topics have not been deleted or recreated."""
        is_due = time.monotonic() - self._checked_at > _CHECK_EVERY_SECONDS
        if is_due and (failure := self.check_brokers()) is not None:
            raise failure

    def send(self, start: Offset, batch: ChangeBatch) -> None:
        """Pass the rows of a batch to the producer; waits while too much is in flight.

        Raises:
            TailerdError: A row cannot be delivered, or an earlier one failed.
        """
        if self._records is None:
            raise BugError("The Kafka sink was written to before it was resumed.")
        if start.table_id != self._table_id:
            # REPLACE gave the table a new id. A restart at this offset does the same.
            self.describe(start.table_id)
        now_us = time.time_ns() // 1000
        destination, records = self._records.records(batch, now_us=now_us)
        self._latest = max(self._latest, (batch.timestamp_us // 1000, batch.version))
        self._topics.renew(MAX_AGE_SECONDS)
        # Before a marker is sent: a commit that has to wait must not have a BEGIN yet.
        pieces = self._route_batch(batch, records, now_us // 1000, destination)
        if self._markers is not None:
            for marker in self._markers.rows(start, batch, len(records)):
                self._send_marker(marker)
        for piece in pieces:
            for ready in self._coalescer.add(Versioned(request=piece, versions=batch.version)):
                self._send(ready)

    def send_rest(self, end: Offset) -> None:
        """Pass the delivery's buffered records to the producer.

        Raises:
            TailerdError: As `send`.
        """
        for ready in self._coalescer.rest():
            self._send(ready)
        if self._markers is not None:
            for marker in self._markers.end(end):
                self._send_marker(marker)

    def share(self) -> SharedTransaction:
        """Start a delivery that another process writes; return the producer that it joins.

        Raises:
            TailerdError: The brokers cannot be reached, or refuse.
        """
        self._topics.renew(MAX_AGE_SECONDS)
        if self._transactions is None:
            with self._connection.calls("assigns no producer id"):
                producer_id, epoch = wait_for_identity(self._client, seconds=_OPEN_SECONDS)
            return SharedTransaction(
                transactional_id=None,
                producer_id=producer_id,
                epoch=epoch,
                sequences=known_sequences(self._client),
            )
        self._transactions.begin()
        # A failed delivery must be aborted at once, because readers wait for the transaction's end.
        mark_started(self._client)
        self._is_shared = True
        return self._transactions.share()

    def take_over(self, written: WrittenRecords) -> None:
        """Continue a delivery after the records that another process wrote.

        All of them must be acknowledged.
        """
        self._topics.learn(written.facts)
        self._schemas.known.learn(written.schemas, is_confirmed=True)
        self._used.update(each.name for each in written.facts)
        self._set_aside.update(written.set_aside)
        self._is_shared = False
        if self._transactions is not None:
            self._transactions.take_over(written.seconds)
        continue_from(self._client, written.sequences)

    def explain_failure(self, error: TailerdError) -> TailerdError:
        """Return why another process failed; `Transactions.explained` does so for fencing."""
        if isinstance(error, SinkFencedError):
            return self._explain_error(ProducerFencedError())
        return error

    def finish_shared(self, seconds: float) -> WrittenRecords:
        """Wait until everything is acknowledged; return the result for the session that shared it.

        Raises:
            TailerdError: A record was not acknowledged.
        """
        self._await_acknowledgements()
        self._delivery = None
        return WrittenRecords(
            seconds=seconds,
            window=self._window,
            facts=self._topics.requested,
            schemas=self._schemas.known.to_texts(),
            set_aside=dict(self._set_aside),
            sequences=known_sequences(self._client),
        )

    def finish(self, saved: SavedOffset) -> None:
        """End the delivery: wait for acknowledgements, save the offset, commit the transaction.

        Raises:
            TailerdError: The delivery does not count, unless the saved offset shows that it does.
        """
        if self._transactions is None:
            # The offset must not be visible before the rows are.
            self._await_acknowledgements()
        self._check_topics()
        if self._config.stores_offsets:
            self.keep(self._pipeline, replace(saved, topics=self._topics.ids))
        self._await_acknowledgements()
        if self._transactions is not None and self._transactions.is_open:
            self._transactions.commit()
        self._delivery = None

    def take_set_aside(self) -> list[tuple[str, str, int]]:
        """Return the last delivery's number of dead letters by topic and reason; reset it."""
        counts = [(*partition, count) for partition, count in self._set_aside.items()]
        self._set_aside.clear()
        return counts

    def keep(self, pipeline: PipelineIdentity, saved: SavedOffset) -> None:
        """Send the record of an offset; `finish` or `flush` waits for it."""
        topic = self._config.offsets_topic
        found = self._topics.ensure({topic: list_required_topics(self._config, self._table)[topic]})
        check_offset_topic(found[topic])
        self._send_side(
            ControlRecord(
                topic=topic,
                partition=PARTITION,
                key=pipeline.key,
                value=saved.to_json(),
                timestamp_ms=time.time_ns() // 1_000_000,
            )
        )

    def tell(self, records: Sequence[ControlRecord]) -> None:
        """Send control records after the rows before them; wait until all are acknowledged."""
        for ready in self._coalescer.rest():
            self._send(ready)
        for record in records:
            self._send_side(record)
        self._await_acknowledgements()

    def flush(self) -> None:
        """End a delivery of control records."""
        self._await_acknowledgements()
        if self._transactions is not None and self._transactions.is_open:
            self._transactions.commit()
        self._delivery = None

    def close(self, *, is_clean: bool) -> Claim | None:
        """Close the producer; if not clean, abort the transaction and drop unsent records.

        Returns:
            Its claim on the producer id, for the next session of this process; None without one.
        """
        if self._transactions is None:
            own = read_identity(self._client)
            held = Claim(producer_id=own.producer_id, epoch=own.epoch) if own.is_valid else None
        else:
            held = self._transactions.held
        if not is_clean and self._transactions is not None:
            self._transactions.abort()
        close_producer(self._client, seconds=_CLOSE_SECONDS, is_clean=is_clean)
        name = transactional_id(self._config, self._pipeline)
        if name is None or held is None or not self._is_shared:
            return held
        return claim_again(self._connection, name, held)

    def _route_batch(
        self, batch: ChangeBatch, records: Records, now_ms: int, destination: Destination
    ) -> list[ProduceRequest]:
        def route_records() -> list[ProduceRequest]:
            shape_of = self._get_shape
            found = self._router.route(
                batch, records, shape_of, now_ms=now_ms, destination=destination
            )
            return list(found)

        try:
            pieces = route_records()
        except ConfigError:
            # The topic may have got more partitions since.
            if not self._topics.renew():
                raise
            pieces = route_records()
        if destination.is_dead_letter:
            for piece in pieces:
                self._set_aside[piece.topic, IncompatibleSchemaError.code] += len(piece.records)
        return pieces

    def _send(self, ready: Versioned) -> None:
        piece = ready.request
        oversize = self._hand_over(piece)
        if not oversize:
            return
        if self._topics.renew() and self._get_shape(piece.topic).max_bytes > piece.max_bytes:
            raise takes_more_now(piece.topic)
        all_versions = ready.versions
        letters = make_dead_letters(
            piece,
            oversize,
            [
                all_versions if isinstance(all_versions, int) else int(all_versions[each.row])
                for each in oversize
            ],
            config=self._config,
            table=self._table,
            get_max_bytes=lambda topic: self._get_shape(topic).max_bytes,
        )
        if left := self._hand_over(letters):
            raise BugError(f"A dead letter of {left[0].size_bytes} bytes fits no topic.")
        self._set_aside[letters.topic, TOO_LARGE] += len(oversize)

    def _send_marker(self, marker: ControlRecord) -> None:
        if self._config.timestamp == "delivery":
            marker = replace(marker, timestamp_ms=time.time_ns() // 1_000_000)
        self._send_side(marker)

    def _send_side(self, record: ControlRecord) -> None:
        limit = self._get_shape(record.topic).max_bytes
        if self._hand_over(control_record(record, max_bytes=limit)):
            raise SinkRefusedError(
                f"A record of tailerd's own does not fit into the topic {record.topic}.",
                remedy="Raise max.message.bytes of the topic.",
            )

    def _hand_over(self, piece: ProduceRequest) -> tuple[OversizeRecord, ...]:
        if self._delivery is None:
            raise BugError("Records were sent outside a delivery.")
        if self._transactions is not None:
            self._transactions.begin()
            self._transactions.check_time()
        try:
            if not has_metadata(self._client, piece.topic):
                # Waiting for metadata of a deleted topic would take the client's whole timeout.
                self._checked_at = 0.0
                self._check_topics()
            self._client.partitions_for(piece.topic)
            self._used.add(piece.topic)
            return self._producer.send(piece, self._delivery)
        except (KafkaError, ValueError) as error:
            raise self._explain_error(error) from error

    def _await_acknowledgements(self) -> None:
        if self._delivery is not None:
            self._delivery.wait()

    def _get_shape(self, topic: str) -> TopicShape:
        # Also called before `prepare`: the first offset is saved before it.
        wanted = list_required_topics(self._config, self._table)
        facts = self._topics.ensure({topic: wanted.get(topic, new_topic(self._config))})[topic]
        return TopicShape(
            partitions=facts.partitions,
            max_bytes=self._topics.max_batch_bytes(facts),
            retention_ms=facts.retention_ms,
            ahead_ms=facts.ahead_ms,
        )

    def _explain_error(self, error: Exception) -> TailerdError:
        time_ms, version = self._latest
        is_refused = isinstance(find_reason(error), InvalidTimestampError)
        if is_refused and time_ms > time.time_ns() // 1_000_000:
            # This user may not see the topic's settings, or the brokers' clock is slow.
            return too_far_ahead(version, time_ms, f"Kafka at {self._connection.address}")
        doing = f"Rows of {self._table} were not delivered to Kafka at {self._connection.address}"
        if isinstance(error, NoProgressError) and self._topics.problem() == "":
            self._window.shrink()
            return too_slow(doing, error)
        if self._transactions is not None:
            return self._transactions.explain(error, doing)
        # A process of an engine writes into the transaction of another one.
        is_transactional = self._client.config["transactional_id"] is not None
        secrets = self._connection.secrets
        return map_error(error, doing, secrets=secrets, is_transactional=is_transactional)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRecords:
    """The part of a delivery that a process wrote and another one ends. Picklable.

    Attributes:
        facts: Topic facts that the process fetched from the brokers.
        schemas: The schemas that the process knows, by subject.
        set_aside: Topic and reason -> number of dead letters.
        sequences: The next sequence number of each partition.
        seconds: Duration of the writes.
        window: Adapted to the process's connection.
    """

    seconds: float
    window: SendWindow
    facts: tuple[TopicFacts, ...]
    schemas: Mapping[str, str]
    set_aside: Mapping[tuple[str, str], int]
    sequences: Mapping[tuple[str, int], int]


def new_window(config: KafkaSinkConfig, connection: Connection) -> SendWindow:
    """Return the window of a new sink: requests in flight take a part of their timeout at most."""
    timeout_ms = connection.number("request_timeout_ms", DEFAULT_REQUEST_TIMEOUT_MS)
    return SendWindow(config.max_in_flight_bytes, seconds=timeout_ms / 1000 / 4)


def transactional_id(config: KafkaSinkConfig, pipeline: PipelineIdentity) -> str | None:
    """Return the id of a pipeline's transactions; None if it has none."""
    if not config.is_exactly_once:
        return None
    return config.transactional_id or pipeline.transactional_id


def list_required_topics(config: KafkaSinkConfig, table: str) -> dict[str, NewTopic | None]:
    """Return the topics that a table needs for any rows, with their creation settings."""
    new = new_topic(config)
    single = (
        None
        if new is None
        else NewTopic(partitions=1, replication_factor=new.replication_factor, configs={})
    )
    wanted: dict[str, NewTopic | None] = {}
    fixed = Router(config, table).fixed_topic()
    if fixed is not None:
        wanted[fixed] = new
    if config.dead_letter_topic is not None and (
        config.on_oversize == "dead-letter" or config.has_incompatible_letters
    ):
        wanted[config.name_topic(config.dead_letter_topic, table)] = single
    if config.transaction_topic is not None:
        wanted[config.name_topic(config.transaction_topic, table)] = single
    if config.schema_change_topic is not None:
        wanted[config.name_topic(config.schema_change_topic, table)] = single
    if config.heartbeat_interval is not None:
        wanted[config.name_topic(config.heartbeat_topic, table)] = single
    if config.stores_offsets:
        create = config.create_topic
        wanted[config.offsets_topic] = new_offset_topic(
            None if create is None else create.replication_factor
        )
    return wanted


def new_topic(config: KafkaSinkConfig) -> NewTopic | None:
    """Return the creation settings of missing topics; None if they are not created."""
    create = config.create_topic
    if create is None:
        return None
    return NewTopic(
        partitions=create.partitions,
        replication_factor=create.replication_factor,
        configs=create.configs,
    )
