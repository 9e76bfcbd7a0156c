"""A producer of kafka-python without brokers: what is handed to its sender is there at once."""

from __future__ import annotations

from typing import Any, cast

from kafka import KafkaProducer, TopicPartition
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.transaction_manager import TransactionManager
from kafka.record.memory_records import MemoryRecords


class ClientDouble:
    """What the sink takes hold of; the accumulator and the transaction manager are the real ones.

    Attributes:
        sent: Topic, partition, key, value and headers of each record, in order.
        batches: Transactional id (None without), producer id, epoch and first number of each batch.
        fails_with: What brokers answer to the next batches; None takes them.
        is_closed: Whether it was closed.
    """

    def __init__(self, transactional_id: str | None = None, partitions: int = 1) -> None:
        self.config = {"transactional_id": transactional_id}
        self.sent: list[tuple[str, int, bytes | None, bytes | None, list[Any]]] = []
        self.batches: list[tuple[str | None, int, int, int]] = []
        self.fails_with: Exception | None = None
        self.is_closed = False
        self._partitions = partitions
        self._transaction_manager = TransactionManager(transactional_id)
        self._accumulator = RecordAccumulator()
        self._sender = self
        self._metadata = self

    @property
    def client(self) -> KafkaProducer:
        return cast(KafkaProducer, self)

    def partitions_for(self, topic: str) -> set[int]:
        return {*range(self._partitions)}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {*range(self._partitions)}

    def wakeup(self) -> None:
        """Send everything now, as the sender's thread would."""
        for partition, batches in self._accumulator._batches.items():
            while batches:
                self._send(partition, batches.popleft())

    def force_close(self) -> None:
        self.is_closed = True

    def join(self, seconds: float) -> None:
        pass

    def is_alive(self) -> bool:
        return False

    def close(self, timeout: float) -> None:
        self.is_closed = True

    def _send(self, partition: TopicPartition, batch: Any) -> None:
        if (error := self.fails_with) is not None:
            batch.complete_exceptionally(error, lambda _: error)
            return
        manager, records = self._transaction_manager, batch.records
        owner, first = manager.producer_id_and_epoch, manager.sequence_number(partition)
        in_transaction = manager.is_transactional()
        records.set_producer_state(owner.producer_id, owner.epoch, first, in_transaction)
        records.close()
        found = [record for each in MemoryRecords(records.buffer()) for record in each]
        self.sent += [(*partition, each.key, each.value, each.headers) for each in found]
        manager.increment_sequence_number(partition, len(found))
        manager._partitions_in_transaction.add(partition)
        self.batches.append((manager.transactional_id, owner.producer_id, owner.epoch, first))
        batch.complete(0, -1)
