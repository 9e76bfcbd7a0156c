"""Everything that uses private names of kafka-python; a guard test lists them all. Blocking.

Features that the client lacks: keeping a producer's id, epoch and sequence numbers over connections
and processes, one transaction that several processes write into, finished record batches, and
requests that outlive a coordinator.

A broker rejects records and requests of a producer id whose epoch is older than the newest one it
has seen. So whatever an earlier connection may still deliver is harmless once the epoch is raised.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kafka import KafkaProducer, TopicPartition
from kafka.cluster import ClusterMetadata
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.transaction_manager import (
    InitProducerIdHandler,
    ProducerIdAndEpoch,
    TransactionState,
)

_MAX_EPOCH = 2**15 - 1
_NEVER_MS = 2**31 - 1
_POLL_SECONDS = 0.002


def prepare(producer: KafkaProducer) -> None:
    """Make a new producer keep its identity and batches, and report why a batch was rejected."""
    keep_identity(producer)
    keep_batches(producer)
    producer._sender._record_exceptions_fn = _explain_rejection


def keep_identity(producer: KafkaProducer) -> None:
    """Forbid the client to change its producer id or epoch by itself after an error.

    A fenced producer would fence off the current owner of the transactional id. A producer without
    one would get a new id, under which brokers accept delayed records of the former.
    """
    manager = producer._transaction_manager
    manager._supports_epoch_bump = lambda: False
    manager.reset_producer_id = lambda: None


def keep_batches(producer: KafkaProducer) -> None:
    """Forbid the client to drop batches because of their age; `Acknowledgements` limits waits.

    On a slow link the last of many queued batches is old before it is sent.
    """
    producer._accumulator.config["delivery_timeout_ms"] = _NEVER_MS


def read_identity(producer: KafkaProducer) -> ProducerIdAndEpoch:
    """Return the producer id and epoch; not valid before the brokers have assigned them."""
    return producer._transaction_manager.producer_id_and_epoch


def wait_for_identity(producer: KafkaProducer, *, seconds: float) -> tuple[int, int]:
    """Return the producer id and epoch of a producer without transactions.

    Raises:
        KafkaError: The brokers refuse, or do not answer in time.
    """
    manager = producer._transaction_manager
    deadline = time.monotonic() + seconds
    while not (found := read_identity(producer)).is_valid:
        if manager.has_fatal_error():
            raise manager.last_error
        if time.monotonic() > deadline:
            raise KafkaTimeoutError(f"no producer id for {seconds:.0f} s")
        producer._sender.wakeup()
        time.sleep(_POLL_SECONDS)
    return found.producer_id, found.epoch


def continue_identity(
    producer: KafkaProducer, producer_id: int, epoch: int, *, seconds: float
) -> None:
    """Continue a producer id under the next epoch, as a producer without transactions.

    Sequence numbers begin at 0 again. Once a partition has a record of the new epoch, its broker
    rejects delayed records of earlier ones; those that come before precede the repeated records.

    Args:
        producer: One that has sent nothing.
        producer_id, epoch: Of a closed producer of this process.
        seconds: As for `wait_for_identity`.

    Raises:
        KafkaError: As `wait_for_identity`.
    """
    # The answer to the client's own request must not come later and replace the id.
    wait_for_identity(producer, seconds=seconds)
    if epoch >= _MAX_EPOCH:
        return
    manager = producer._transaction_manager
    with manager._lock:
        manager.set_producer_id_and_epoch(ProducerIdAndEpoch(producer_id, epoch + 1))


def raise_epoch(producer: KafkaProducer, *, seconds: float) -> None:
    """Claim the producer's transactional id again, between two transactions.

    The request carries the current epoch, so it fails if another process has claimed the id.

    Raises:
        KafkaError: Another process has, or the brokers do not answer in time.
    """
    manager = producer._transaction_manager
    with manager._lock:
        manager._transition_to(TransactionState.BUMPING_PRODUCER_EPOCH)
        manager._sequence_numbers.clear()
        request = InitProducerIdHandler(manager, manager.transaction_timeout_ms, is_epoch_bump=True)
        # Otherwise the client answers some refusals with an unconditional claim.
        request._is_epoch_bump = False
        manager._enqueue_request(request)
    producer._sender.wakeup()
    if not request.result.wait(timeout_ms=seconds * 1000):
        raise KafkaTimeoutError(f"no answer for {seconds:.0f} s")


def end_transaction(producer: KafkaProducer, *, is_commit: bool, seconds: float) -> bool:
    """Commit or abort the open transaction.

    Returns:
        Whether the brokers got exactly one request. If it had to be repeated, the first one may
        still arrive, and would end the transaction that is open then.

    Raises:
        KafkaError: It failed, or the brokers do not answer in time.
    """
    manager = producer._transaction_manager
    with manager._lock:
        result = manager.begin_commit() if is_commit else manager.begin_abort()
        [request] = [each for _, _, each in manager._pending_requests if each.result is result]
    producer._sender.wakeup()
    if not result.wait(timeout_ms=seconds * 1000):
        raise KafkaTimeoutError(f"no answer for {seconds:.0f} s")
    return not request.is_retry


# A transaction belongs to a transactional id, its producer id and its epoch, not to a connection:
# any process that knows the three may add partitions and records to it. Records of a partition
# have sequence numbers, so a partition must have one writer at a time, and the next writer
# continues its sequence. One process claims the id and ends the transaction (`transactions.py`);
# the others join.
#
# Without transactions the processes share producer id and epoch in the same way. If a delivery
# fails, the next one has another epoch, so brokers reject a process that still writes.
#
# This uses the client's private `TransactionManager`; a guard test lists the names used.

Sequences = Mapping[tuple[str, int], int]
"""Topic and partition -> sequence number of its next record; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTransaction:
    """The values that a process needs to write for another one. Picklable.

    Attributes:
        transactional_id, producer_id, epoch: Identify the producer and its open transaction, if
            it has a transactional id.
        sequences: The next sequence number of each partition.
    """

    transactional_id: str | None
    producer_id: int
    epoch: int
    sequences: Sequences


def mark_started(producer: KafkaProducer) -> None:
    """Make this producer's commit or abort reach the brokers even if only other processes wrote."""
    manager = producer._transaction_manager
    with manager._lock:
        manager._transaction_started = True


def join(producer: KafkaProducer, transaction: SharedTransaction) -> None:
    """Write into a transaction from now on. No request may be pending.

    Args:
        producer: One with any transactional id, not initialised; or one without, which has an id.
        transaction: Of any id, or without one like the producer.
    """
    manager = producer._transaction_manager
    with manager._lock:
        if manager.transactional_id != transaction.transactional_id:
            manager.transactional_id = transaction.transactional_id
            # Each id has its own coordinator.
            manager._transaction_coordinator = None
        manager.set_producer_id_and_epoch(
            ProducerIdAndEpoch(transaction.producer_id, transaction.epoch)
        )
        for known in (
            manager._sequence_numbers,
            manager._last_acked_offset,
            manager._new_partitions_in_transaction,
            manager._pending_partitions_in_transaction,
            manager._partitions_in_transaction,
        ):
            known.clear()
        continue_from(producer, transaction.sequences)
        manager._last_error = None
        is_transactional = transaction.transactional_id is not None
        manager._current_state = (
            TransactionState.IN_TRANSACTION if is_transactional else TransactionState.READY
        )


def continue_from(producer: KafkaProducer, sequences: Sequences) -> None:
    """Continue the partitions' sequence numbers of other writers. No request may be pending."""
    manager = producer._transaction_manager
    for (topic, partition), sequence in sequences.items():
        manager.set_sequence_number(TopicPartition(topic, partition), sequence)


def known_sequences(producer: KafkaProducer) -> dict[tuple[str, int], int]:
    """Return the next sequence number of each partition, also those continued from other writers.

    No request may be pending.
    """
    manager = producer._transaction_manager
    with manager._lock:
        numbers = manager._sequence_numbers
        return {
            (topic_partition.topic, topic_partition.partition): next_one
            for topic_partition, next_one in numbers.items()
        }


def keep_requests(producer: KafkaProducer, backoff_seconds: float) -> None:
    """Make the producer retry requests that fail because a coordinator is unavailable.

    If `await_ready` returns False, the sender looks up the new coordinator and keeps the request.
    But `await_ready` raises instead, and then the request is dropped: the transaction hangs until
    its records expire, while the sender busy-loops.
    """
    client = producer._sender._client
    await_ready = client.await_ready

    def is_ready(node_id: object, timeout_ms: float = 30_000) -> bool:
        try:
            return bool(await_ready(node_id, timeout_ms=timeout_ms))
        except KafkaError:
            time.sleep(backoff_seconds)
            return False

    client.await_ready = is_ready


def _explain_rejection(
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


def refresh_metadata(producer: KafkaProducer, *, seconds: float) -> ClusterMetadata | None:
    """Return the current metadata of a producer's topics; None if no broker answers."""
    metadata: ClusterMetadata = producer._metadata
    answered = threading.Event()
    metadata.request_update().add_both(lambda *_: answered.set())
    return metadata if answered.wait(seconds) else None


def has_metadata(producer: KafkaProducer, topic: str) -> bool:
    """Return whether a producer has metadata of a topic's partitions."""
    return producer._metadata.partitions_for_topic(topic) is not None


def append_batch(producer: KafkaProducer, batch: ProducerBatch, futures: object) -> None:
    """Put a finished batch into the accumulator's queue, as `RecordAccumulator.append` does.

    Args:
        producer: It sends the batch at once: the next one may have to wait for its acknowledgement.
        batch: With finished records.
        futures: Replaces the list of the futures of its records.
    """
    partition = batch.topic_partition
    transactions = producer._transaction_manager
    if transactions.is_transactional():
        transactions.maybe_add_partition_to_transaction(partition)
    batch._record_futures = futures
    accumulator = producer._accumulator
    accumulator._appends_in_progress.increment()
    try:
        with accumulator._tp_lock(partition):
            if accumulator._closed:
                raise IllegalStateError("the producer is closed")
            accumulator._batches[partition].append(batch)
            accumulator._incomplete.add(batch)
    finally:
        accumulator._appends_in_progress.decrement()
    producer._sender.wakeup()
