"""Exactly once: one transaction per micro-batch, which executors write into and the driver ends.

The driver claims the transactional id of the group, which aborts what its predecessor left, and
begins; tasks join (`sinks/kafka/shared_transaction.py`), write, and report how far each partition
is; the driver adds one record to the topic of offsets, which says that this micro-batch of this
checkpoint is delivered, and commits. All rows of all tables and that record become visible
together, or none does. So there is no moment in which rows are there and nobody knows it, nor one
in which somebody believes it and they are not: whoever comes next reads that record, once its
predecessor's transaction is settled. A micro-batch that Spark repeats is either recorded, and
nothing is written, or nothing of it is visible, and all is written again.

A transaction for each task, prepared, listed and then committed one by one, was ruled out: brokers
abort a prepared transaction when its time is over, also when it is on the list, and its rows would
have to be found again among others that are committed already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kafka import KafkaProducer
from kafka.errors import KafkaError, ProducerFencedError

from tailerd.errors import BugError, SinkFencedError, TailerdError
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.batch_producer import BatchProducer
from tailerd.sinks.kafka.connection import (
    DEFAULT_DELIVERY_TIMEOUT_MS,
    Connection,
    close_producer,
)
from tailerd.sinks.kafka.offset_topic import PARTITION, OffsetTopic
from tailerd.sinks.kafka.produce_request import ProduceRequest, control_record
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.shared_transaction import (
    SharedTransaction,
    continue_from,
    lead,
    written,
)
from tailerd.sinks.kafka.transactions import Claim, Transactions
from tailerd.sinks.topics.control_records import ControlRecord
from tailerd.spark.delivered_batch import DeliveredBatch

_CLOSE_SECONDS = 5.0
_SLOW_HINT = (
    "Raise transaction_timeout_ms under `producer` (at most the brokers'"
    " transaction.max.timeout.ms), or lower max_bytes_per_batch or max_files_per_batch of the"
    " tables, which holds for micro-batches that are not begun."
)
_GIVEN_UP = (
    "It may also have been a task of this one that Spark gave up: the brokers end in time what it"
    " still began, and that shuts out everybody."
)
_FENCED_HINT = (
    "Check that no other process uses the id, or set another transactional_id; then restart the"
    " daemon, which resumes from its offset."
)


class BatchTransaction:
    """The driver's side: one transaction after the other, until one fails. Blocking.

    After a failure it is closed, never used again.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        *,
        key: str,
        topic: str,
        max_bytes: int,
    ) -> None:
        """Open a producer; nothing is claimed yet.

        Args:
            connection: To the brokers.
            transactional_id: Of the group.
            key: Under which the group's delivered batches are recorded.
            topic: Where; it is there.
            max_bytes: The largest batch it takes.

        Raises:
            TailerdError: The brokers cannot be reached, or refuse.
        """
        self._connection = connection
        self._id = transactional_id
        self._key = key
        self._topic = topic
        self._max_bytes = max_bytes
        self._client = connection.producer(transactional_id)
        # Records of the driver's own are few: the client need not be told to build batches.
        self._sender = BatchProducer(self._client, compression=Compression(connection.compression))
        self._transactions = self._transactions_of(self._client)
        self._sequences: dict[tuple[str, int], int] = {}

    def claim(self, before: Claim | None) -> DeliveredBatch | None:
        """Shut out and settle whatever a predecessor left; return what was delivered last.

        Args:
            before: How this process held the id before a failure.

        Raises:
            SinkFencedError: Another process has the id since.
            TailerdError: The brokers do not answer, or refuse.
        """
        try:
            with _both_causes():
                self._transactions.claim(before)
            value = OffsetTopic(self._connection, self._topic).read_value(
                self._key, is_settled=True, abandoned=threading.Event()
            )
        except BaseException:
            self.close(is_clean=False)
            raise
        place = f"The record of {self._key} in the topic {self._topic}"
        return None if value is None else DeliveredBatch.from_json(value, place)

    def begin(self) -> SharedTransaction:
        """Begin; return what tasks need to join."""
        self._transactions.begin()
        # What tasks wrote must be undone at once if it does not count: readers wait for its end.
        lead(self._client)
        held = self._transactions.held
        return SharedTransaction(
            transactional_id=self._id,
            producer_id=held.producer_id,
            epoch=held.epoch,
            sequences=dict(self._sequences),
        )

    def commit(
        self,
        delivered: DeliveredBatch,
        by_tasks: Sequence[Mapping[tuple[str, int], int]],
        letters: Sequence[ProduceRequest],
    ) -> None:
        """Record the micro-batch and make everything visible.

        Args:
            delivered: What to record.
            by_tasks: Of each task, the partitions it wrote and their next numbers.
            letters: What was too large for all tasks.

        Raises:
            SinkFencedError: Another process took over.
            SinkTooSlowError: The time of the transaction is over.
            SinkError: Whether it is committed may be unknown; the record tells the next `claim`.
        """
        record = ControlRecord(
            topic=self._topic,
            partition=PARTITION,
            key=self._key,
            value=delivered.to_json(),
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        timeout_ms = self._connection.number("delivery_timeout_ms", DEFAULT_DELIVERY_TIMEOUT_MS)
        acknowledgements = Acknowledgements(
            max_bytes=2**30, timeout_seconds=timeout_ms / 1000, explain=self._explained
        )
        for each in by_tasks:
            self._sequences.update(each)
        # Tasks may have written to the topics of dead letters before.
        continue_from(self._client, self._sequences)
        with _both_causes():
            for piece in (*letters, control_record(record, max_bytes=self._max_bytes)):
                self._send(piece, acknowledgements)
            acknowledgements.wait()
            self._sequences.update(written(self._client))
            self._transactions.commit()

    def explained(self, error: TailerdError) -> TailerdError:
        """Return why tasks failed, telling a transaction out of time from one taken over."""
        if isinstance(error, SinkFencedError):
            return _with_both_causes(self._explained(ProducerFencedError()))
        return error

    def close(self, *, is_clean: bool) -> Claim | None:
        """End the producer; not clean: undo what is open, as far as the brokers can be reached.

        Returns:
            How this process holds the id now; None where that is not known.
        """
        held, is_open = self._transactions.held, self._transactions.is_open
        close_producer(self._client, seconds=_CLOSE_SECONDS, is_clean=is_clean)
        return held if is_clean or not is_open else self._undo(held)

    def _undo(self, held: Claim) -> Claim | None:
        """Claim the id again, which undoes what is open and shuts out who may write into it.

        Tasks end later than their job fails. An end of the transaction alone would let one that
        joins it behind that open another, with the same epoch, which nobody would end in time.
        """
        try:
            client = self._connection.producer(self._id)
        except TailerdError:
            # The next claim, or the brokers when the time is over, does it.
            return held
        try:
            transactions = self._transactions_of(client)
            transactions.claim(held)
            return transactions.held
        except SinkFencedError:
            # Another process has the id, and has undone it. Who claims next with `held` hears that.
            return held
        except TailerdError:
            # It may have succeeded, and then the epoch is another one.
            return None
        finally:
            close_producer(client, seconds=_CLOSE_SECONDS, is_clean=False)

    def _transactions_of(self, client: KafkaProducer) -> Transactions:
        return Transactions(
            client,
            transactional_id=self._id,
            connection=self._connection,
            slow_hint=_SLOW_HINT,
            # It begins with the first record, after whatever tasks had to do before.
            is_timed=False,
        )

    def _send(self, piece: ProduceRequest, acknowledgements: Acknowledgements) -> None:
        try:
            self._client.partitions_for(piece.topic)
            left = self._sender.send(piece, acknowledgements)
        except (KafkaError, ValueError) as error:
            raise self._explained(error) from error
        if left:
            raise BugError(f"A record of {left[0].size_bytes} bytes does not fit {piece.topic}.")

    def _explained(self, error: Exception) -> TailerdError:
        doing = f"A micro-batch was not delivered to Kafka at {self._connection.address}"
        return self._transactions.explained(error, doing)


@contextmanager
def _both_causes() -> Iterator[None]:
    try:
        yield
    except SinkFencedError as error:
        raise _with_both_causes(error) from error


def _with_both_causes(error: TailerdError) -> TailerdError:
    """Say of an id that was lost who may have it.

    A transaction that a late task began here, and brokers ended, looks to them as one that another
    process had claimed the id for and undone: so nobody claims it again without being told to.
    """
    if not isinstance(error, SinkFencedError):
        return error
    return SinkFencedError(f"{error.message} {_GIVEN_UP}", remedy=_FENCED_HINT)
