"""What one Spark task does with its records: into Kafka, acknowledged, reported. On executors."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from kafka.errors import InvalidTimestampError, KafkaError
from pyspark import TaskContext

from tailerd.errors import (
    BatchRetryError,
    BugError,
    ConfigError,
    SinkRefusedError,
    TailerdError,
    TopicRecreatedError,
)
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.batch_coalescing import BatchCoalescer, Versioned
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import DEFAULT_DELIVERY_TIMEOUT_MS
from tailerd.sinks.kafka.dead_letters import dead_letters_of, takes_more_now
from tailerd.sinks.kafka.errors import mapped
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.record_batch import OversizeRecord
from tailerd.sinks.kafka.routing import too_far_ahead
from tailerd.sinks.kafka.shared_transaction import SharedTransaction, join, written
from tailerd.sinks.kafka.topics import TopicFacts
from tailerd.sinks.topics.dead_letters import TOO_LARGE
from tailerd.spark.attribution import attribute_to_table, attributed_to
from tailerd.spark.deliveries import Tally
from tailerd.spark.encoded_records import RecordPiece
from tailerd.spark.kafka.record_pieces import (
    BATCH_HEADER,
    Partitioner,
    outgoing_piece,
)
from tailerd.spark.kafka.task_producer import TaskProducer, give_back, take_producer
from tailerd.spark.kafka.topic_shapes import TopicShapes
from tailerd.spark.packed_records import unpacked
from tailerd.spark.partitions import freeze_gc

REPORT_SCHEMA = "report binary"
_MAX_LETTER_BYTES = 32 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What a task tells the driver; everything in it is acknowledged.

    Attributes:
        tables: What it delivered.
        sequences: Of a shared transaction: the partitions it wrote, each with its next number.
        letters: Of a shared transaction: what was too large, which the driver writes.
        facts: What brokers said about topics in this task.
    """

    tables: Mapping[str, Tally]
    sequences: Mapping[tuple[str, int], int]
    letters: tuple[ProduceRequest, ...]
    facts: tuple[TopicFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """What all tasks of a micro-batch have in common. Picklable.

    Attributes:
        sinks: The section of each table.
        faults: Tables whose records cannot be written, and why.
        facts: Topics that the driver knows.
        group: What brokers know the query as (`writer_name`).
        batch_id: Spark's number of the micro-batch.
        transaction: Where records belong; None delivers at least once.
    """

    sinks: Mapping[str, KafkaSinkConfig]
    faults: Mapping[str, TailerdError]
    facts: tuple[TopicFacts, ...]
    group: str
    batch_id: int
    transaction: SharedTransaction | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a task's packed records; yield its `TaskReport`, pickled, in one row.

        Raises:
            BatchRetryError: The micro-batch has to be written again; nothing of it counts.
            TailerdError: Nothing of a transaction counts; else the task's records may be there.
        """
        freeze_gc()
        context = TaskContext.get()
        if self.transaction is not None and context is not None and context.attemptNumber():
            raise BatchRetryError(
                f"A task of micro-batch {self.batch_id} is tried again, so the micro-batch is too:"
                " what the task wrote before is in the same transaction."
            )
        config = next(iter(self.sinks.values()))
        identity = None if self.transaction is None else self.transaction.transactional_id
        opened = take_producer(config, identity)
        try:
            report = _Writing(self, opened).run(batches)
        except BaseException:
            opened.close()
            raise
        give_back(config, identity, opened)
        yield pa.record_batch({"report": pa.array([pickle.dumps(report)], pa.binary())})


class _Writing:
    """One task's way through its records."""

    def __init__(self, task: WriteTask, opened: TaskProducer) -> None:
        self._task = task
        self._opened = opened
        self._table = ""
        self._coalescer = BatchCoalescer()
        self._tables: dict[str, Tally] = {}
        self._letters: list[ProduceRequest] = []
        self._letter_bytes = 0
        # Time, version and table of the commit that is dated latest.
        self._latest = (0, 0, "")
        self._shapes = TopicShapes(task.sinks, opened.topics, task.faults)
        timeout_ms = opened.connection.number("delivery_timeout_ms", DEFAULT_DELIVERY_TIMEOUT_MS)
        self._acknowledgements = Acknowledgements(
            max_bytes=next(iter(task.sinks.values())).max_in_flight_bytes,
            timeout_seconds=timeout_ms / 1000,
            explain=self._explained,
            look=self._changed_topic,
        )

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write everything; return when it is acknowledged."""
        task, opened = self._task, self._opened
        # What this worker found out in an earlier batch may be old; the driver renews what it has.
        opened.topics.forget()
        opened.topics.learn(task.facts)
        if task.transaction is not None:
            join(opened.client, task.transaction)
        partitioner = Partitioner(batch_id=task.batch_id)
        headers: dict[str, bytes] = {}
        if task.transaction is None:
            headers[BATCH_HEADER] = f"{task.group}/{task.batch_id}".encode()
        for piece in unpacked(batches):
            self._change_to(piece.table)
            with attributed_to(piece.table):
                self._take(piece, partitioner, headers)
        self._change_to("")
        self._acknowledgements.wait()
        return TaskReport(
            tables=self._tables,
            sequences={} if task.transaction is None else written(opened.client),
            letters=tuple(self._letters),
            facts=opened.topics.asked,
        )

    def _take(
        self, piece: RecordPiece, partitioner: Partitioner, headers: Mapping[str, bytes]
    ) -> None:
        self._latest = max(self._latest, (piece.timestamp_us // 1000, piece.version, self._table))
        try:
            outgoing = self._outgoing(piece, partitioner, headers)
        except ConfigError:
            # The topic may have partitions since that it had not.
            if not self._shapes.renew():
                raise
            outgoing = self._outgoing(piece, partitioner, headers)
        for ready in self._coalescer.add(outgoing):
            self._send(ready)
        self._tables.setdefault(self._table, Tally()).count(piece)

    def _outgoing(
        self, piece: RecordPiece, partitioner: Partitioner, headers: Mapping[str, bytes]
    ) -> Versioned:
        return outgoing_piece(
            piece,
            config=self._task.sinks[self._table],
            partitioner=partitioner,
            shape=self._shapes.shape_of(self._table, piece.topic),
            more_headers=headers,
            now_ms=time.time_ns() // 1_000_000,
        )

    def _change_to(self, table: str) -> None:
        """Send what is held back of the table before: pieces of two tables are not joined."""
        if table != self._table:
            with attributed_to(self._table):
                for ready in self._coalescer.rest():
                    self._send(ready)
            self._table = table

    def _send(self, ready: Versioned) -> None:
        piece = ready.outgoing
        oversize = self._hand_over(piece)
        if not oversize:
            return
        shape = self._shapes.shape_of
        if self._shapes.renew() and shape(self._table, piece.topic).max_bytes > piece.max_bytes:
            raise takes_more_now(piece.topic)
        letters = dead_letters_of(
            piece,
            oversize,
            _versions(ready, oversize),
            config=self._task.sinks[self._table],
            table=self._table,
            max_bytes_of=lambda topic: self._shapes.shape_of(self._table, topic).max_bytes,
        )
        delivery = self._tables.setdefault(self._table, Tally())
        delivery.dead_letters[letters.topic, TOO_LARGE] += len(oversize)
        if self._task.transaction is None:
            if left := self._hand_over(letters):
                raise BugError(f"A dead letter of {left[0].size_bytes} bytes fits no topic.")
            return
        # Other tasks have some too, and a partition has one writer in a transaction.
        self._letters.append(letters)
        self._letter_bytes += letters.records.values.nbytes
        if self._letter_bytes > _MAX_LETTER_BYTES:
            raise SinkRefusedError(
                f"A micro-batch has more than {_MAX_LETTER_BYTES >> 20} MiB of records of"
                f" {self._table} that are too large for the topic {piece.topic}.",
                remedy="Raise max.message.bytes of the topic and max_request_size under"
                " `producer`, or choose delivery: at-least-once.",
            )

    def _hand_over(self, piece: ProduceRequest) -> tuple[OversizeRecord, ...]:
        try:
            self._opened.client.partitions_for(piece.topic)
            return self._opened.sender.send(piece, self._acknowledgements)
        except (KafkaError, ValueError) as error:
            raise self._explained(error) from error

    def _changed_topic(self) -> TailerdError | None:
        """Return an error where a topic was made again: the driver finds out whose it is."""
        try:
            self._opened.topics.check_ids()
        except TopicRecreatedError as error:
            return BatchRetryError(
                f"{error.message} The micro-batch is tried again without that table."
            )
        except TailerdError:
            return None
        return None

    def _explained(self, error: Exception) -> TailerdError:
        connection = self._opened.connection
        time_ms, version, table = self._latest
        if isinstance(error, InvalidTimestampError) and time_ms > time.time_ns() // 1_000_000:
            ahead = too_far_ahead(version, time_ms, f"Kafka at {connection.address}")
            return attribute_to_table(ahead, table)
        whose = f" of {self._table}" if self._table else ""
        doing = f"Rows{whose} were not delivered to Kafka at {connection.address}"
        return mapped(error, doing, secrets=connection.secrets)


def _versions(ready: Versioned, oversize: tuple[OversizeRecord, ...]) -> list[int]:
    versions = ready.versions
    return [versions if isinstance(versions, int) else int(versions[each.row]) for each in oversize]
