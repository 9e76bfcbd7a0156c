"""Transactions of one producer: rows and offset become visible together or not at all. Blocking.

The coordinator knows a process by the epoch it was given. Another epoch has three causes:

    A  another process has claimed the id           -> the saved offset has another epoch; fenced
    B  a transaction exceeded its timeout           -> this process continues
    C  a delayed request of this process arrived    -> as B

The coordinator shows the newest epoch and the state of the newest transaction, which is enough to
recognise most of B. The epoch of the saved offset decides the rest: every start increments it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka import KafkaProducer
from kafka.admin import TransactionDescription, TransactionState
from kafka.errors import KafkaError

from tailerd.errors import SinkError, SinkFencedError, SinkTooSlowError, TailerdError
from tailerd.sinks.kafka.client_internals import (
    SharedTransaction,
    close_producer,
    end_transaction,
    keep_requests,
    known_sequences,
    raise_epoch,
    read_identity,
)
from tailerd.sinks.kafka.connection import DEFAULT_TRANSACTION_TIMEOUT_MS, Connection
from tailerd.sinks.kafka.errors import build_fenced_error, map_error

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
    """A process's claim on a producer id.

    Attributes:
        producer_id, epoch: Assigned by the brokers.
        is_overdue: Whether a transaction may still be open. The coordinator aborts it after its
            timeout, and then increments the epoch.
    """

    producer_id: int
    epoch: int
    is_overdue: bool = False

    def has_timed_out(self, found: TransactionDescription) -> bool:
        """Return whether the coordinator seems to have aborted the transaction by itself.

        Another process's claim increments the epoch twice if it interrupts a transaction.
        """
        is_ended = found.state in (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT)
        is_next = (found.producer_id, found.producer_epoch) == (self.producer_id, self.epoch + 1)
        return bool(self.is_overdue and is_ended and is_next)

    def still_holds(self, found: TransactionDescription) -> bool:
        """Return whether no other claim is visible."""
        own = (self.producer_id, self.epoch)
        return bool((found.producer_id, found.producer_epoch) == own) or self.has_timed_out(found)


def _never() -> bool:
    return False


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
        # Whether a request that ended the last transaction may still be on its way.
        self._has_late_end = False
        keep_requests(producer, connection.number("retry_backoff_ms", 20) / 1000)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._began is not None

    @property
    def held(self) -> Claim:
        """This producer's claim on the id."""
        own = read_identity(self._producer)
        return Claim(
            producer_id=own.producer_id,
            epoch=own.epoch,
            is_overdue=self.is_open,
        )

    def share(self) -> SharedTransaction:
        """Return what another process needs to write into the open transaction."""
        held = self.held
        return SharedTransaction(
            transactional_id=self._id,
            producer_id=held.producer_id,
            epoch=held.epoch,
            sequences=known_sequences(self._producer),
        )

    def claim(self, before: Claim | None, is_latest: Callable[[], bool] = _never) -> None:
        """Fence off earlier producers of this id and end their open transactions.

        Args:
            before: This process's claim before a failure that may have been caused by another
                process's claim: that process must not be fenced off in turn.
            is_latest: Returns whether no other process has started since; may raise. Called if the
                coordinator does not show that the claim still holds.

        Raises:
            SinkFencedError: Another process has claimed the id since.
            TailerdError: The claim was refused, or the brokers do not answer.
        """
        if before is not None:
            found = self._describe_transaction()
            if (found is None or not before.still_holds(found)) and not is_latest():
                raise build_fenced_error(f"Transactions of {self._id} cannot continue")
        with self._connection.calls(f"does not accept the transactional id {self._id}"):
            self._producer.init_transactions()

    def begin(self) -> None:
        """Begin a transaction, unless one is open.

        Raises:
            TailerdError: The id could not be claimed again, which a late request makes necessary.
        """
        if self._began is not None:
            return
        try:
            if self._has_late_end:
                raise_epoch(self._producer, seconds=_COMMIT_SECONDS)
                self._has_late_end = False
            self._producer.begin_transaction()
        except KafkaError as error:
            raise self.explain(error, "A transaction cannot begin") from error
        self._began = _now()

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
            self._began = _now() - seconds

    def commit(self) -> None:
        """Make everything since `begin` visible.

        Raises:
            SinkFencedError: Another process took over.
            SinkError: Whether it is committed may be unknown; the saved offset shows it.
        """
        self.check_time()
        try:
            is_single = end_transaction(self._producer, is_commit=True, seconds=_COMMIT_SECONDS)
        except KafkaError as error:
            raise self.explain(error, "A transaction was not committed") from error
        self._has_late_end = not is_single
        self._began = None

    def abort(self) -> None:
        """Abort the transaction, if the brokers can be reached. The producer is then closed.

        Otherwise it is aborted when the id is claimed next, or when it times out; until then
        read-committed consumers do not see its records.
        """
        if self._began is None:
            return
        self._began = None
        try:
            end_transaction(self._producer, is_commit=False, seconds=_ABORT_SECONDS)
        except KafkaError:
            # The producer is unusable now; the caller closes it.
            return

    def explain(self, error: Exception, doing: str) -> TailerdError:
        """Return the mapped error; a fenced transaction is retried, because `claim` decides it."""
        secrets = self._connection.secrets
        ours = map_error(error, doing, secrets=secrets, is_transactional=True)
        if not isinstance(ours, SinkFencedError):
            return ours
        is_old = self._age_seconds() >= self._limit_seconds
        if is_old and (
            (found := self._describe_transaction()) is None or self.held.has_timed_out(found)
        ):
            return SinkTooSlowError(
                f"{doing}, because it took longer than {self._limit_seconds:.0f} s and the brokers"
                " ended it.",
                remedy=_HINT,
            )
        return SinkError(
            f"{doing}, because the brokers no longer accept this claim of the transactional id"
            f" {self._id}. The next attempt checks whether another process has claimed it."
        )

    def _age_seconds(self) -> float:
        return 0.0 if self._began is None else _now() - self._began

    def _describe_transaction(self) -> TransactionDescription | None:
        """Return the coordinator's description of the id; None if unavailable."""
        try:
            with self._connection.admin() as admin:
                return admin.describe_transactions([self._id])[self._id]
        except (KafkaError, TailerdError):
            # Unknown, not permitted or unreachable: the operation itself reports that.
            return None


def _now() -> float:
    """Return a monotonic time in seconds that, where the system has one, counts a suspension."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def claim_again(connection: Connection, transactional_id: str, held: Claim) -> Claim:
    """Fence off other processes that wrote into a transaction, after its own producer is closed.

    They may still be running when the delivery fails. After a mere abort, a process that joins late
    could open another transaction with the same epoch, which would stay open until its timeout.

    Returns:
        This process's newest known claim on the id.
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
    except TailerdError:
        # Whether it succeeded or another process has claimed the id, the next claim finds out.
        return held
    finally:
        close_producer(client, seconds=_ABORT_SECONDS, is_clean=False)
