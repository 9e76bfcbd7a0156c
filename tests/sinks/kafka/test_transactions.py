"""What a process does once the coordinator does not know its claim any more."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.admin import TransactionState
from kafka.errors import InvalidProducerEpochError, ProducerFencedError
from kafka.producer.transaction_manager import ProducerIdAndEpoch

from tailerd.errors import SinkError, SinkFencedError, SinkTooSlowError
from tailerd.sinks.kafka import transactions as transactions_module
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.errors import map_error
from tailerd.sinks.kafka.session import Session
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.sinks.kafka.transactions import Claim, Transactions

pytestmark = pytest.mark.attack

HELD = Claim(producer_id=7, epoch=3, is_overdue=True)


class CoordinatorDouble:
    """A connection to a coordinator that describes one transactional id.

    Attributes:
        found: Producer id, epoch and state; None if it does not answer.
        claims: How often the id was claimed.
    """

    secrets = ()

    def __init__(self, found: tuple[int, int, TransactionState] | None) -> None:
        self.found = found
        self.claims = 0

    def number(self, _: str, default: int) -> int:
        return default

    @contextmanager
    def calls(self, _: str) -> Any:
        yield

    @contextmanager
    def admin(self) -> Any:
        if self.found is None:
            raise SinkError("Nobody answers.")
        producer_id, epoch, state = self.found
        described = SimpleNamespace(producer_id=producer_id, producer_epoch=epoch, state=state)
        yield SimpleNamespace(describe_transactions=lambda names: dict.fromkeys(names, described))

    def init_transactions(self) -> None:
        self.claims += 1

    def begin_transaction(self) -> None:
        pass

    def transactions(self) -> Transactions:
        client = SimpleNamespace(await_ready=None)
        producer = SimpleNamespace(
            _transaction_manager=SimpleNamespace(producer_id_and_epoch=ProducerIdAndEpoch(7, 3)),
            _sender=SimpleNamespace(_client=client),
            init_transactions=self.init_transactions,
            begin_transaction=self.begin_transaction,
        )
        return Transactions(
            cast(Any, producer), transactional_id="x", connection=cast(Connection, self)
        )


@pytest.mark.parametrize(
    ("found", "is_latest", "is_claimed"),
    [
        pytest.param((7, 3, TransactionState.ONGOING), False, True, id="unchanged"),
        pytest.param((7, 4, TransactionState.COMPLETE_ABORT), False, True, id="timed out"),
        pytest.param((7, 4, TransactionState.EMPTY), True, True, id="late claim of this process"),
        pytest.param((7, 5, TransactionState.EMPTY), False, False, id="other process"),
        pytest.param((9, 0, TransactionState.ONGOING), False, False, id="other producer id"),
        pytest.param(None, False, False, id="coordinator does not tell, other process"),
        pytest.param(None, True, True, id="coordinator does not tell"),
    ],
)
def test_an_id_is_claimed_again_only_if_no_other_process_has_started(
    found: tuple[int, int, TransactionState] | None, is_latest: bool, is_claimed: bool
) -> None:
    coordinator = CoordinatorDouble(found)
    if is_claimed:
        coordinator.transactions().claim(HELD, lambda: is_latest)
    else:
        with pytest.raises(SinkFencedError):
            coordinator.transactions().claim(HELD, lambda: is_latest)
    assert coordinator.claims == is_claimed


@pytest.mark.parametrize(("age", "kind"), [(61.0, SinkTooSlowError), (2.0, SinkError)])
@pytest.mark.parametrize("error", [ProducerFencedError(), InvalidProducerEpochError()])
def test_a_transaction_that_the_brokers_ended_is_retried(
    monkeypatch: pytest.MonkeyPatch, error: Exception, age: float, kind: type[SinkError]
) -> None:
    """A suspended machine may not count the time: the transaction seems to be young."""
    transactions = CoordinatorDouble((7, 4, TransactionState.COMPLETE_ABORT)).transactions()
    transactions.begin()
    now = transactions_module._now()
    monkeypatch.setattr(transactions_module, "_now", lambda: now + age)
    explained = transactions.explain(error, "Rows were not delivered")
    assert type(explained) is kind
    assert explained.retryable


def test_another_claim_is_an_error_that_the_next_attempt_decides() -> None:
    transactions = CoordinatorDouble((7, 5, TransactionState.EMPTY)).transactions()
    explained = transactions.explain(ProducerFencedError(), "Rows were not delivered")
    assert type(explained) is SinkError
    assert explained.retryable


def test_the_time_of_a_transaction_counts_a_suspension() -> None:
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert transactions_module._now() == pytest.approx(
            time.clock_gettime(time.CLOCK_BOOTTIME), abs=1
        )


def test_an_old_epoch_without_a_transactional_id_is_no_other_process() -> None:
    error = InvalidProducerEpochError()
    assert map_error(error, "Topic a could not be written").retryable
    assert type(map_error(error, "It", is_transactional=True)) is SinkFencedError


async def test_a_claim_survives_an_attempt_that_reaches_no_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = {"kind": "kafka", "bootstrap_servers": ["h:1"], "topic": "t"}
    config = KafkaSinkConfig.model_validate({**section, "delivery": "exactly-once"})
    sink = KafkaSink(config, table="t")
    sink._claim = HELD
    given: list[Claim | None] = []

    def opened(*_: object, before: Claim | None, **__: object) -> Session:
        given.append(before)
        raise SinkError("Kafka cannot be reached.")

    monkeypatch.setattr(Session, "open", opened)
    monkeypatch.setattr(KafkaSink, "_identity", lambda *_: SimpleNamespace())
    for _ in range(2):
        with pytest.raises(SinkError):
            await sink.fence()
    assert given == [HELD, HELD]
    await sink.aclose()
