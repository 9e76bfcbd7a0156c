"""Transactions of one producer: rows and offset become visible together or not at all. Blocking.

What kafka-python waits for without end is waited for here with one, which takes its private
`TransactionManager`; a guard test names what is used.
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
"""Part of the time limit that rows may take; the rest is for the commit."""
_HINT = (
    "The next attempt delivers half as much. To be spared such attempts, lower max_bytes_per_batch"
    " or max_files_per_batch of the table, or raise transaction_timeout_ms under `producer` (at"
    " most the brokers' transaction.max.timeout.ms)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How a transactional id was held.

    Attributes:
        producer_id, epoch: What the coordinator gave when the id was claimed.
        is_overdue: Whether a transaction was open for longer than it may, so that the coordinator
            may have ended it, which takes the epoch one on.
    """

    producer_id: int
    epoch: int
    is_overdue: bool

    def still_holds(self, found: TransactionDescription) -> bool:
        """Return whether nobody else claimed the id since; whoever does takes the epoch further."""
        if found.producer_id != self.producer_id:
            return False
        is_ended = found.state in (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT)
        is_next = self.is_overdue and is_ended and found.producer_epoch == self.epoch + 1
        return bool(is_next or found.producer_epoch == self.epoch)


class Transactions:
    """One transaction after the other."""

    def __init__(
        self,
        producer: KafkaProducer,
        *,
        transactional_id: str,
        connection: Connection,
    ) -> None:
        """Initialize; nothing is claimed.

        Args:
            producer: Has the id.
            transactional_id, connection: Its.
        """
        self._producer = producer
        self._id = transactional_id
        self._connection = connection
        limit_ms = connection.number("transaction_timeout_ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        self._limit_seconds = limit_ms / 1000
        self._began: float | None = None
        # A producer that is shut out must not let itself in again, as the client would in its own
        # thread: it would shut out whoever has the id now.
        producer._transaction_manager._supports_epoch_bump = lambda: False
        keep_requests(producer, connection.number("retry_backoff_ms", 20) / 1000)

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._began is not None

    @property
    def held(self) -> Claim:
        """How this producer holds the id."""
        own = self._producer._transaction_manager.producer_id_and_epoch
        return Claim(
            producer_id=own.producer_id,
            epoch=own.epoch,
            is_overdue=self._age_seconds() >= self._limit_seconds,
        )

    def shared(self) -> SharedTransaction:
        """Return what another process needs to write into the transaction that is open."""
        held = self.held
        return SharedTransaction(
            transactional_id=self._id,
            producer_id=held.producer_id,
            epoch=held.epoch,
            sequences=known_sequences(self._producer),
        )

    def claim(self, before: Claim | None) -> None:
        """Shut out earlier producers of this id and end what they left open.

        Args:
            before: How this process held the id before a failure whose reason may have been that
                another took it over: then that one must not be shut out in turn.

        Raises:
            SinkFencedError: Another process has the id since.
            TailerdError: Refused, or the brokers do not answer.
        """
        if before is not None:
            found = self._described()
            if found is not None and not before.still_holds(found):
                raise mapped(ProducerFencedError(), f"Transactions of {self._id} cannot go on")
        with self._connection.calls(f"does not accept the transactional id {self._id}"):
            self._producer.init_transactions()

    def begin(self) -> None:
        """Begin a transaction, unless one is open."""
        if self._began is None:
            with self._connection.calls("cannot begin a transaction"):
                self._producer.begin_transaction()
            self._began = time.monotonic()

    def check_time(self) -> None:
        """Make sure that there is time left to commit.

        Raises:
            SinkTooSlowError: There is not; it says what to change.
        """
        if self._age_seconds() > self._limit_seconds * _USABLE:
            raise SinkTooSlowError(
                f"A delivery takes longer than {self._limit_seconds * _USABLE:.0f} s, so the"
                " brokers would end its transaction before it is committed.",
                remedy=_HINT,
            )

    def take_over(self, seconds: float) -> None:
        """Count the time of a transaction that another process wrote for so many seconds."""
        if self._began is not None:
            self._began = time.monotonic() - seconds

    def commit(self) -> None:
        """Make everything since `begin` visible.

        Raises:
            SinkFencedError: Another process took over.
            SinkError: Whether it is committed may be unknown; the saved offset says.
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
        """Undo everything since `begin`, as far as the brokers can be reached.

        What cannot be undone here is undone when the id is claimed next, or when its time is over;
        until then readers of committed records do not see it.
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
            # The producer is of no use any more, which the caller knows: it closes it.
            return

    def explained(self, error: Exception, doing: str) -> TailerdError:
        """Return our error, telling a transaction that ran out of time from one taken over."""
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
        """Ask the coordinator about the id; None where it does not say."""
        try:
            with self._connection.admin() as admin:
                return admin.describe_transactions([self._id])[self._id]
        except (KafkaError, TailerdError):
            # Unknown, not to be seen by this user, or out of reach: what needs it says so itself.
            return None


def claim_again(connection: Connection, transactional_id: str, held: Claim) -> Claim | None:
    """Shut out other processes that wrote into a transaction, when its own producer is closed.

    They end later than the delivery fails. An end of the transaction alone would let one that joins
    it behind that open another, with the same epoch, which nobody would end in time.

    Returns:
        How this process holds the id now; None where that is not known.
    """
    try:
        client = connection.producer(transactional_id)
    except TailerdError:
        # The next claim, or the brokers when the time is over, does it.
        return held
    try:
        again = Transactions(client, transactional_id=transactional_id, connection=connection)
        again.claim(held)
        return again.held
    except SinkFencedError:
        # Another process has the id, and has undone it. Who claims next with `held` hears that.
        return held
    except TailerdError:
        # It may have succeeded, and then the epoch is another one.
        return None
    finally:
        close_producer(client, seconds=_ABORT_SECONDS, is_clean=False)
