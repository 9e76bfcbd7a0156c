"""Read a pipeline's newest committed record from the compacted offsets topic. Blocking.

All pipelines write to its first partition, so that a changed number of partitions does not move an
offset to a partition that is not read. Therefore another pipeline's open transaction may hide our
newest record for a while; a settled read waits for it to end.
"""

from __future__ import annotations

import threading
import time

from kafka import KafkaConsumer, TopicPartition

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import ConfigError, SinkError
from tailerd.remedies import reset_command
from tailerd.sinks.kafka.connection import DEFAULT_TRANSACTION_TIMEOUT_MS, Connection
from tailerd.sinks.kafka.partition_reader import read_partition
from tailerd.sinks.kafka.topics import NewTopic, TopicFacts

PARTITION = 0
_FIRST_WINDOW = 1000
_WIDER = 16
_SETTLE_MARGIN_SECONDS = 15.0


def new_offset_topic(replication_factor: int | None) -> NewTopic:
    """Return the settings of the new topic: small segments, so that compaction keeps it small."""
    configs = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024**2)}
    return NewTopic(partitions=1, replication_factor=replication_factor, configs=configs)


def check_offset_topic(facts: TopicFacts) -> None:
    """Check that the topic retains offsets.

    Raises:
        ConfigError: Kafka would delete them after a while.
    """
    policies = [each.strip() for each in facts.cleanup_policy.split(",") if each.strip()]
    deletes = "delete" in policies and not facts.is_unlimited
    if policies and (deletes or "compact" not in policies):
        raise ConfigError(
            f"The topic {facts.name} has cleanup.policy={facts.cleanup_policy}, so Kafka deletes"
            " offsets when they are old, and a pipeline would start over.",
            remedy="Set its cleanup.policy to compact (`kafka-configs.sh --alter --topic"
            f" {facts.name} --add-config cleanup.policy=compact`), or name another offsets_topic.",
        )


class OffsetTopic:
    """Reads offsets from the topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._location = TopicPartition(topic, PARTITION)
        limit_ms = connection.number("transaction_timeout_ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        self._settle_seconds = limit_ms / 1000 + _SETTLE_MARGIN_SECONDS

    def read(
        self, pipeline: PipelineIdentity, *, is_settled: bool, abandoned: threading.Event
    ) -> SavedOffset | None:
        """Return the last committed offset of a pipeline; None if there is none.

        Args:
            pipeline: Its identity.
            is_settled: Wait until everything written before this call is committed or aborted.
            abandoned: Set by another thread to end the wait.

        Raises:
            OffsetError: The record is damaged, or was written by a newer release.
            SinkError: The topic cannot be read, or others' transactions stay open.
        """
        value = self.read_value(pipeline.key, is_settled=is_settled, abandoned=abandoned)
        if value is None:
            return None
        return SavedOffset.from_json(
            value,
            location=f"The offset of {pipeline.table} in the topic {self._location.topic}",
            fix=f"{reset_command(pipeline.table)}.",
        )

    def read_value(self, key: str, *, is_settled: bool, abandoned: threading.Event) -> bytes | None:
        """Return the last committed value of a key; None if there is none.

        Args:
            key: The record's key.
            is_settled, abandoned: As for `read`.

        Raises:
            SinkError: The topic cannot be read, or others' transactions stay open.
        """
        with (
            self._connection.consumer() as consumer,
            self._connection.calls(
                f"does not return the records of the topic {self._location.topic}"
            ),
        ):
            consumer.assign([self._location])
            until = self._settled_end(consumer, abandoned) if is_settled else self._end(consumer)
            return self._newest(consumer, key.encode(), until, abandoned)

    def _end(self, consumer: KafkaConsumer) -> int:
        return int(consumer.end_offsets([self._location])[self._location])

    def _settled_end(self, consumer: KafkaConsumer, abandoned: threading.Event) -> int:
        with self._connection.consumer(is_committed=False) as all_records:
            written = int(all_records.end_offsets([self._location])[self._location])
        deadline = time.monotonic() + self._settle_seconds
        while (end := self._end(consumer)) < written:
            if time.monotonic() > deadline or abandoned.is_set():
                raise SinkError(
                    f"The topic {self._location.topic} has a transaction that stays open, so the"
                    " newest offset is unknown.",
                    remedy="Abort it with kafka-transactions.sh, or wait until it times out.",
                )
            abandoned.wait(0.05)
        return end

    def _newest(
        self, consumer: KafkaConsumer, key: bytes, until: int, abandoned: threading.Event
    ) -> bytes | None:
        """Search backward in growing windows: the newest record is usually near the end."""
        first = int(consumer.beginning_offsets([self._location])[self._location])
        window = _FIRST_WINDOW
        while until > first:
            start = max(first, until - window)
            values = self._values(consumer, key, start, until, abandoned)
            if values:
                return values[-1]
            until, window = start, window * _WIDER
        return None

    def _values(
        self,
        consumer: KafkaConsumer,
        key: bytes,
        start: int,
        until: int,
        abandoned: threading.Event,
    ) -> list[bytes | None]:
        """Return the last value of a key in a window of offsets, if there is one."""
        consumer.seek(self._location, start)
        newest: list[bytes | None] = []
        for records in read_partition(consumer, self._location, until, abandoned=abandoned):
            for record in records:
                if record.key == key:
                    newest = [record.value]
        return newest
