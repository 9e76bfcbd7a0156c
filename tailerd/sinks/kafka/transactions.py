"""Transactions of one producer: rows and offset become visible together or not at all. Blocking.

Waits that are unbounded in kafka-python are bounded here, which uses its private
`TransactionManager`; a guard test lists the names used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from kafka import KafkaProducer
from kafka.admin import TransactionDescription, TransactionState
from kafka.errors import KafkaError, KafkaTimeoutError, ProducerFencedError

from tailerd.errors import SinkFencedError, SinkTooSlowError, TailerdError
from tailerd.sinks.kafka.connection import (
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    Connection,
    close_producer,
)
from tailerd.sinks.kafka.errors import mapped
from tailerd.sinks.kafka.sender_requests import keep_requests
from tailerd.sinks.kafka.shared_transaction import SharedTransaction, known_sequences

_ABORT_SECONDS = 5.0
_COMMIT_SECONDS = 30.0
_USABLE = 0.8
"""Fraction of the time limit for rows; the rest is for the commit."""
_HINT = (
    "The next attempt delivers half as much. To be spared such attempts, lower max_bytes_per_batch"
    " or max_files_per_batch of the table, or raise transaction_timeout_ms under `producer` (at"
    " most the brokers' transaction.max.timeout.ms)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A process's claim on a transactional id.

    Attributes:
        producer_id, epoch: Assigned by the coordinator when the id was claimed.
        is_overdue: Whether a transaction exceeded its timeout, so that the coordinator may have
            aborted it, which increments the epoch.
    """

    producer_id: int
    epoch: int
    is_overdue: bool

    def still_holds(self, found: TransactionDescription) -> bool:
        """Return whether no other process has claimed the id since, which increments the epoch."""
        if found.producer_id != self.producer_id:
            return False
        is_ended = found.state in (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT)
        is_next = self.is_overdue and is_ended and found.producer_epoch == self.epoch + 1
        return bool(is_next or found.producer_epoch == self.epoch)


class Transactions:
    """A producer's transactions, one at a time."""

    def __init__(
        self,
        producer: KafkaProducer,
        *,
        transactional_id: str,
        connection: Connection,
    ) -> None:
        """Initialize; claims nothing yet.

        Args:
            producer: A producer with the transactional id.
            transactional_id, connection: The producer's.
        """
        self._producer = producer
        self._id = transactional_id
        self._connection = connection
        limit_ms = connection.number("transaction_timeout_ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        self._limit_seconds = limit_ms / 1000
        self._began: float | None = None
        # A fenced producer must not bump its epoch, as the client would in its own thread: that
        # would fence off the current owner of the id.
        producer._transaction_manager._supports_epoch_bump = lambda: False
        keep_requests(producer, connection.number("retry_backoff_ms", 20) / 1000)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._began is not None

    @property
    def held(self) -> Claim:
        """This producer's claim on the id."""
        own = self._producer._transaction_manager.producer_id_and_epoch
        return Claim(
            producer_id=own.producer_id,
            epoch=own.epoch,
            is_overdue=self._age_seconds() >= self._limit_seconds,
        )

    def shared(self) -> SharedTransaction:
        """Return what another process needs to write into the open transaction."""
        held = self.held
        return SharedTransaction(
            transactional_id=self._id,
            producer_id=held.producer_id,
            epoch=held.epoch,
            sequences=known_sequences(self._producer),
        )

    def claim(self, before: Claim | None) -> None:
        """Fence off earlier producers of this id and end their open transactions.

        Args:
            before: This process's claim before a failure that may have been caused by another
                process's claim: that process must not be fenced off in turn.

        Raises:
            SinkFencedError: Another process has claimed the id since.
            TailerdError: The claim was refused, or the brokers do not answer.
        """
        if before is not None:
            found = self._described()
            if found is not None and not before.still_holds(found):
                raise mapped(ProducerFencedError(), f"Transactions of {self._id} cannot continue")
        with self._connection.calls(f"does not accept the transactional id {self._id}"):
            self._producer.init_transactions()

    def begin(self) -> None:
        """Begin a transaction, unless one is open."""
        if self._began is None:
            with self._connection.calls("cannot begin a transaction"):
                self._producer.begin_transaction()
            self._began = time.monotonic()

    def check_time(self) -> None:
        """Check that there is time left to commit.

        Raises:
            SinkTooSlowError: There is not; its remedy names the settings to change.
        """
        if self._age_seconds() > self._limit_seconds * _USABLE:
            raise SinkTooSlowError(
                f"A delivery takes longer than {self._limit_seconds * _USABLE:.0f} s, so the"
                " brokers would end its transaction before it is committed.",
                remedy=_HINT,
            )

    def take_over(self, seconds: float) -> None:
        """Set the age of a transaction into which another process wrote for `seconds`."""
        if self._began is not None:
            self._began = time.monotonic() - seconds

    def commit(self) -> None:
        """Make everything since `begin` visible.

        Raises:
            SinkFencedError: Another process took over.
            SinkError: Whether it is committed may be unknown; the saved offset shows it.
        """
        self.check_time()
        manager = self._producer._transaction_manager
        try:
            result = manager.begin_commit()
            self._producer._sender.wakeup()
            if not result.wait(timeout_ms=_COMMIT_SECONDS * 1000):
                raise KafkaTimeoutError(f"no answer for {_COMMIT_SECONDS:.0f} s")
        except KafkaError as error:
            raise self.explained(error, "A transaction was not committed") from error
        self._began = None

    def abort(self) -> None:
        """Abort the transaction, if the brokers can be reached.

        Otherwise it is aborted when the id is claimed next, or when it times out; until then
        read-committed consumers do not see its records.
        """
        if self._began is None:
            return
        self._began = None
        manager = self._producer._transaction_manager
        try:
            result = manager.begin_abort()
            self._producer._sender.wakeup()
            result.wait(timeout_ms=_ABORT_SECONDS * 1000)
        except KafkaError:
            # The producer is unusable now; the caller closes it.
            return

    def explained(self, error: Exception, doing: str) -> TailerdError:
        """Return the mapped error; distinguishes a timed-out transaction from a fenced one."""
        ours = mapped(error, doing, secrets=self._connection.secrets)
        if not isinstance(ours, SinkFencedError) or self._age_seconds() < self._limit_seconds:
            return ours
        found = self._described()
        if found is None or not self.held.still_holds(found):
            return ours
        return SinkTooSlowError(
            f"{doing}, because it took longer than {self._limit_seconds:.0f} s and the brokers"
            " ended it.",
            remedy=_HINT,
        )

    def _age_seconds(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def _described(self) -> TransactionDescription | None:
        """Return the coordinator's description of the id; None if unavailable."""
        try:
            with self._connection.admin() as admin:
                return admin.describe_transactions([self._id])[self._id]
        except (KafkaError, TailerdError):
            # Unknown, not permitted or unreachable: the operation itself reports that.
            return None


def claim_again(connection: Connection, transactional_id: str, held: Claim) -> Claim | None:
    """Fence off other processes that wrote into a transaction, after its own producer is closed.

    They may still be running when the delivery fails. After a mere abort, a process that joins late
    could open another transaction with the same epoch, which would stay open until its timeout.

    Returns:
        This process's new claim on the id; None if unknown.
    """
    try:
        client = connection.producer(transactional_id)
    except TailerdError:
        # The next claim fences them off, or the brokers after the timeout.
        return held
    try:
        again = Transactions(client, transactional_id=transactional_id, connection=connection)
        again.claim(held)
        return again.held
    except SinkFencedError:
        # Another process has claimed the id and aborted the transaction. The next `claim(held)`
        # raises that.
        return held
    except TailerdError:
        # It may have succeeded, and then the epoch is different.
        return None
    finally:
        close_producer(client, seconds=_ABORT_SECONDS, is_clean=False)
