"""Read and change what kafka-python's producer knows of its id, epoch and transaction. Blocking.

A broker rejects records and requests of a producer id whose epoch is older than the newest one it
has seen. So whatever an earlier connection may still deliver is harmless once the epoch is raised.

This uses the client's private `TransactionManager`; a guard test lists the names used.
"""

from __future__ import annotations

import time

from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.producer.transaction_manager import (
    InitProducerIdHandler,
    ProducerIdAndEpoch,
    TransactionState,
)

_MAX_EPOCH = 2**15 - 1
_NEVER_MS = 2**31 - 1
_POLL_SECONDS = 0.002


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


def read_identity(producer: KafkaProducer) -> tuple[int, int] | None:
    """Return the producer id and epoch; None before the brokers have assigned them."""
    own = producer._transaction_manager.producer_id_and_epoch
    return (own.producer_id, own.epoch) if own.is_valid else None


def wait_for_identity(producer: KafkaProducer, *, seconds: float) -> tuple[int, int]:
    """Return the producer id and epoch of a producer without transactions.

    Raises:
        KafkaError: The brokers refuse, or do not answer in time.
    """
    manager = producer._transaction_manager
    deadline = time.monotonic() + seconds
    while (found := read_identity(producer)) is None:
        if manager.has_fatal_error():
            raise manager.last_error
        if time.monotonic() > deadline:
            raise KafkaTimeoutError(f"no producer id for {seconds:.0f} s")
        producer._sender.wakeup()
        time.sleep(_POLL_SECONDS)
    return found


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
        still arrive, and would end whatever transaction is open then.

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
