"""The private names of kafka-python that the sink relies on, and what is done with them."""

from __future__ import annotations

import inspect
import re
import threading
from importlib.metadata import version
from types import SimpleNamespace

import kafka.producer.producer_batch
import kafka.producer.record_accumulator
import kafka.producer.sender
import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import TransactionState
from kafka.cluster import ClusterMetadata
from kafka.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    MessageSizeTooLargeError,
)
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import (
    CoordinatorType,
    EndTxnHandler,
    InitProducerIdHandler,
    ProducerIdAndEpoch,
    TransactionalRequestResult,
    TransactionManager,
)
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from tailerd.records.base import Records
from tailerd.sinks.kafka.acknowledgements import Acknowledgements, SendWindow
from tailerd.sinks.kafka.batch_producer import FinishedRecords, _Watch
from tailerd.sinks.kafka.client_internals import SharedTransaction, join, known_sequences
from tailerd.sinks.kafka.record_batches.compression import Compression
from tailerd.sinks.kafka.record_batches.record_batch import RecordBatch, record_batches

PARTITION = TopicPartition("t", 0)


def finished(count: int, compression: Compression = Compression.NONE) -> RecordBatch:
    records = Records(
        keys=pa.array([b"key %d" % n for n in range(count)], pa.binary()),
        values=pa.array([b"value %d " % n * 9 for n in range(count)], pa.binary()),
    )
    [batch] = record_batches(records, timestamps_ms=7, compression=compression).batches
    return batch


def waiting() -> Acknowledgements:
    return Acknowledgements(
        window=SendWindow(10_000, seconds=1), timeout_seconds=1.0, explain=lambda error: error
    )


def attributes(kind: type, *methods: str) -> set[str]:
    """Return the names that some methods set on `self`."""
    sources = [inspect.getsource(getattr(kind, name)) for name in methods]
    return set(re.findall(r"self\.(\w+)(?:: [^=]+)? = ", "\n".join(sources)))


def test_the_client_is_the_release_whose_insides_were_read() -> None:
    assert version("kafka-python") == "3.0.12"


def test_the_producer_has_the_parts_the_sink_takes_hold_of() -> None:
    own = attributes(KafkaProducer, "__init__")
    assert {"_accumulator", "_metadata", "_sender", "_transaction_manager"} <= own
    assert {"partitions_for_topic", "request_update", "topic_id"} <= set(dir(ClusterMetadata))
    assert {"wakeup", "force_close", "join", "is_alive"} <= set(dir(Sender))
    needed = {"begin_commit", "begin_abort", "is_transactional"}
    assert needed | {"maybe_add_partition_to_transaction"} <= set(dir(TransactionManager))
    assert "producer_id_and_epoch" in attributes(TransactionManager, "__init__")
    assert {"producer_id", "epoch"} <= set(ProducerIdAndEpoch.__slots__)
    assert "timeout_ms" in inspect.signature(TransactionalRequestResult.wait).parameters
    assert {"COMPLETE_ABORT", "PREPARE_ABORT"} <= set(TransactionState.__members__)
    # Of `client_internals.py`.
    needed = {"_supports_epoch_bump", "reset_producer_id", "has_fatal_error", "last_error"}
    assert needed | {"_transition_to", "_enqueue_request"} <= set(dir(TransactionManager))
    assert "_pending_requests" in attributes(TransactionManager, "__init__")
    assert "is_retry" in dir(EndTxnHandler)
    assert "_is_epoch_bump" in attributes(InitProducerIdHandler, "__init__")


def test_a_producer_joins_a_transaction_that_another_process_began() -> None:
    """`join` sets what `init_transactions` and `begin_transaction` would."""
    manager = TransactionManager("shared")
    known = {
        "_sequence_numbers",
        "_last_acked_offset",
        "_new_partitions_in_transaction",
        "_pending_partitions_in_transaction",
        "_partitions_in_transaction",
    }
    states = {"_current_state", "_last_error", "_transaction_started"}
    whose = {"transactional_id", "_transaction_coordinator"}
    assert known | states | whose <= attributes(TransactionManager, "__init__")
    client = SimpleNamespace(_transaction_manager=manager)
    manager._partitions_in_transaction.add(TopicPartition("before", 0))
    join(
        client,
        SharedTransaction(
            transactional_id="shared", producer_id=7, epoch=3, sequences={("t", 0): 40}
        ),
    )

    manager.maybe_add_partition_to_transaction(PARTITION)
    assert manager._new_partitions_in_transaction == {PARTITION}
    assert manager.has_producer_id_and_epoch(7, 3)
    assert manager.sequence_number(PARTITION) == 40
    manager.increment_sequence_number(PARTITION, 2)
    assert known_sequences(client) == {("t", 0): 42}


def test_a_producer_joins_a_transaction_of_another_id_at_its_own_coordinator() -> None:
    manager = TransactionManager("before")
    client = SimpleNamespace(_transaction_manager=manager)
    manager._transaction_coordinator = "of before"

    def joined(transactional_id: str) -> tuple[str, object]:
        shared = SharedTransaction(
            transactional_id=transactional_id, producer_id=7, epoch=3, sequences={}
        )
        join(client, shared)
        return manager.transactional_id, manager._transaction_coordinator

    assert joined("before") == ("before", "of before")
    assert joined("after") == ("after", None)
    assert manager.coordinator(CoordinatorType.TRANSACTION) is None
    manager.maybe_add_partition_to_transaction(PARTITION)
    request = manager._add_partitions_to_transaction_handler()
    assert request.transactional_id == "after"


def test_closing_a_producer_does_not_end_its_transaction() -> None:
    """What a task leaves open, only the daemon ends."""
    closing = inspect.getsource(KafkaProducer.close) + inspect.getsource(Sender.run)
    assert "abort_transaction" not in closing
    assert "begin_abort" not in closing


def test_the_accumulator_keeps_batches_where_the_sink_puts_them() -> None:
    accumulator = RecordAccumulator()
    with accumulator._tp_lock(PARTITION):
        accumulator._appends_in_progress.increment()
        accumulator._batches[PARTITION].append(
            ProducerBatch(PARTITION, FinishedRecords(finished(3)))
        )
        accumulator._incomplete.add(accumulator._batches[PARTITION][0])
        accumulator._appends_in_progress.decrement()
    assert accumulator.has_undrained()
    assert accumulator.has_incomplete
    assert accumulator._closed is False
    assert isinstance(accumulator._tp_lock(PARTITION), type(threading.Lock()))


def test_a_finished_batch_answers_everything_the_client_asks_of_records() -> None:
    modules = (
        kafka.producer.producer_batch,
        kafka.producer.record_accumulator,
        kafka.producer.sender,
    )
    requested = set()
    for module in modules:
        requested |= set(re.findall(r"\brecords\.([a-z_]+)", inspect.getsource(module)))
    assert {"close", "buffer", "set_producer_state"} <= requested
    requested -= {"memory_records"}
    assert requested <= set(dir(MemoryRecordsBuilder))
    assert requested <= set(dir(FinishedRecords))


@pytest.mark.parametrize("compression", Compression)
def test_a_finished_batch_is_read_by_the_client_with_who_sent_it(compression: Compression) -> None:
    records = FinishedRecords(finished(50, compression))
    size = records.size_in_bytes()
    records.set_producer_state(12, 3, 400, True)
    records.close()
    records.close()
    assert len(records.buffer()) == size
    [batch] = MemoryRecords(records.buffer())
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (12, 3, 400)
    assert batch.is_transactional
    assert [record.key for record in batch] == [b"key %d" % n for n in range(50)]


def test_who_sends_a_batch_cannot_change_once_it_may_have_been_sent() -> None:
    records = FinishedRecords(finished(1))
    records.set_producer_state(1, 0, 0, False)
    records.close()
    with pytest.raises(IllegalStateError):
        records.set_producer_state(1, 0, 5, False)
    assert records.base_sequence == 0


def test_a_batch_that_is_acknowledged_is_done() -> None:
    acknowledgements, batch = waiting(), finished(10)
    item = ProducerBatch(PARTITION, FinishedRecords(batch))
    acknowledgements.reserve(batch.size_bytes)
    item._record_futures = _Watch(item.produce_future, batch, acknowledgements)
    item.complete(100, -1)
    acknowledgements.wait()
    assert acknowledgements.in_flight_bytes == 0


def test_a_batch_that_fails_fails_the_delivery() -> None:
    acknowledgements, batch = waiting(), finished(10)
    item = ProducerBatch(PARTITION, FinishedRecords(batch))
    acknowledgements.reserve(batch.size_bytes)
    item._record_futures = _Watch(item.produce_future, batch, acknowledgements)
    error = MessageSizeTooLargeError("10")
    item.complete_exceptionally(error, lambda _: error)
    with pytest.raises(MessageSizeTooLargeError):
        acknowledgements.wait()


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_the_client_splits_is_done_when_its_last_part_is(
    compression: Compression,
) -> None:
    accumulator, acknowledgements, batch = RecordAccumulator(), waiting(), finished(10, compression)
    whole = ProducerBatch(PARTITION, FinishedRecords(batch))
    acknowledgements.reserve(batch.size_bytes)
    whole._record_futures = _Watch(whole.produce_future, batch, acknowledgements)
    whole.records.close()
    accumulator.split_and_reenqueue(whole)
    first, second = accumulator._batches[PARTITION]
    first.records.close()
    accumulator._batches[PARTITION].popleft()
    accumulator.split_and_reenqueue(first)
    parts = [*accumulator._batches[PARTITION]]
    assert [part.record_count for part in parts] == [3, 2, 5]
    for part in parts[:-1]:
        part.complete(0, -1)
    assert acknowledgements.in_flight_bytes == batch.size_bytes
    second.complete(5, -1)
    acknowledgements.wait()
    assert acknowledgements.in_flight_bytes == 0
    assert len(np.unique([id(part) for part in parts])) == 3


def test_a_producer_that_is_shut_out_stays_out_when_told_so() -> None:
    manager = TransactionManager(transactional_id="x", api_version=(4, 1))
    batch = ProducerBatch(PARTITION, FinishedRecords(finished(1)))
    fenced = InvalidProducerEpochError()
    assert manager.classify_batch_error(fenced, batch) == manager.ERROR_CLASS_NEEDS_EPOCH_BUMP
    manager._supports_epoch_bump = lambda: False
    assert manager.classify_batch_error(fenced, batch) == manager.ERROR_CLASS_FATAL


def test_the_client_binds_record_futures_when_it_splits() -> None:
    assert list(inspect.signature(FutureRecordMetadata.rebind).parameters) == [
        "self",
        "new_produce_future",
        "new_batch_index",
    ]
    assert "_record_futures" in attributes(ProducerBatch, "__init__")
    assert {"add_callback", "add_errback"} <= set(dir(FutureProduceResult))
