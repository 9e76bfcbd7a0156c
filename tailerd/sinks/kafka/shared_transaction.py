"""One producer id, or one transaction, that several processes write with. Blocking.

A transaction belongs to a transactional id, its producer id and its epoch, not to a connection: any
process that knows the three may add partitions and records to it. Records of a partition have
sequence numbers, so a partition must have one writer at a time, and the next writer continues its
sequence. One process claims the id and ends the transaction (`transactions.py`); the others join.

Without transactions the processes share producer id and epoch in the same way. If a delivery fails,
the next one has another epoch, so brokers reject a process that still writes.

This uses the client's private `TransactionManager`; a guard test lists the names used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka import KafkaProducer, TopicPartition
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionState

Sequences = Mapping[tuple[str, int], int]
"""Topic and partition -> sequence number of its next record; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTransaction:
    """What a process needs to write for another one. Picklable.

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
    """Write into a transaction from now on. Nothing may be in flight.

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
    """Continue the partitions' sequence numbers of other writers. Nothing may be in flight."""
    manager = producer._transaction_manager
    for (topic, partition), sequence in sequences.items():
        manager.set_sequence_number(TopicPartition(topic, partition), sequence)


def known_sequences(producer: KafkaProducer) -> dict[tuple[str, int], int]:
    """Return the next sequence number of each partition, also those continued from other writers.

    Nothing may be in flight.
    """
    manager = producer._transaction_manager
    with manager._lock:
        numbers = manager._sequence_numbers
        return {(place.topic, place.partition): next_one for place, next_one in numbers.items()}
