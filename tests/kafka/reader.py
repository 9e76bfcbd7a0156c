"""Reading topics back with librdkafka, another client than the one under test."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.waiting import PATIENCE_SECONDS

Isolation = Literal["read_committed", "read_uncommitted"]
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Record:
    """One record as the broker has it; `timestamp_ms` is None where the record has none."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    isolation: Isolation = "read_committed",
    start: Mapping[int, int] | None = None,
    seconds: float = PATIENCE_SECONDS,
    options: Mapping[str, str] | None = None,
) -> list[Record]:
    """Return everything in a topic now, ordered by partition and offset.

    With read_committed that ends before the first transaction that is still open.

    Args:
        bootstrap: Address of a broker.
        topic: Its name.
        isolation: Which records count.
        start: Partition → first offset to return; other partitions from their beginning.
        seconds: Longest time without any answer.
        options: More of librdkafka's options.

    Raises:
        KafkaException: The topic cannot be read, or a checksum is wrong.
        TimeoutError: Nothing came for `seconds`.
    """
    found = [
        record
        for batch in read_batches(
            bootstrap, topic, isolation=isolation, start=start, seconds=seconds, options=options
        )
        for record in batch
    ]
    found.sort(key=lambda record: (record.partition, record.offset))
    return found


def read_batches(
    bootstrap: str,
    topic: str,
    *,
    isolation: Isolation = "read_committed",
    start: Mapping[int, int] | None = None,
    seconds: float = PATIENCE_SECONDS,
    options: Mapping[str, str] | None = None,
) -> Iterator[list[Record]]:
    """Yield everything in a topic now, in batches; for topics too large for one list."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": isolation,
            "check.crcs": "true",
            "fetch.wait.max.ms": "10",
            "queued.max.messages.kbytes": "65536",
            "log_level": "0",
            **(options or {}),
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=seconds).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        waiting = set(found.partitions)
        first = start or {}
        consumer.assign(
            [TopicPartition(topic, each, first.get(each, OFFSET_BEGINNING)) for each in waiting]
        )
        yield from _until_the_ends(consumer, waiting, seconds)
    finally:
        consumer.close()


def _headers(
    given: object,
) -> tuple[tuple[str, bytes | None], ...]:
    # librdkafka's types allow more than it returns: pairs, or nothing.
    return tuple(cast("Iterable[tuple[str, bytes | None]]", given or ()))


def _until_the_ends(
    consumer: Consumer, waiting: set[int], seconds: float
) -> Iterator[list[Record]]:
    deadline = time.monotonic() + seconds
    while waiting:
        records = []
        for message in consumer.consume(_BATCH, timeout=0.1):
            error = message.error()
            if error is None:
                kind, time_ms = message.timestamp()
                records.append(
                    Record(
                        message.partition() or 0,
                        message.offset() or 0,
                        time_ms if kind else None,
                        message.key(),
                        message.value(),
                        _headers(message.headers()),
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition() or 0)
            else:
                raise KafkaException(error)
        if records:
            yield records
            deadline = time.monotonic() + seconds
        elif time.monotonic() > deadline:
            raise TimeoutError(f"Partitions {sorted(waiting)} gave nothing for {seconds:g} s.")
