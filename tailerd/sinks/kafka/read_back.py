"""Read all committed records of a pipeline's topics, to compare them with the table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import suppress

from kafka import KafkaConsumer, TopicPartition

from tailerd.errors import SinkError, SinkRefusedError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.connection import Connection
from tailerd.sinks.kafka.destinations import TableSchemas
from tailerd.sinks.kafka.partition_reader import read_partition
from tailerd.sinks.kafka.routing import plain_topic
from tailerd.sinks.topics.templates import TopicTemplate

_READ_BACK = ("avro", "protobuf", "json_schema")
_MAX_RECORDS = 5000


def read_back_format(config: KafkaSinkConfig) -> str:
    """Return the format of the values that `read_values` yields.

    That is `json` or `debezium`; for a format that cannot be read back, its own name.
    """
    if config.data_format in _READ_BACK:
        return "debezium" if config.is_enveloped else "json"
    return config.data_format


async def read_values(
    connection: Connection, config: KafkaSinkConfig, table: str, schemas: TableSchemas
) -> AsyncGenerator[Sequence[bytes]]:
    """Yield the values of all records that are committed now, partition by partition.

    Values of formats that can be read back are decoded to the JSON of `read_back_format`.

    Args:
        connection: To the brokers.
        config: The sink's section.
        table: Configured name of the table.
        schemas: The sink's, for values with registered schemas.

    Raises:
        SinkRefusedError: The first records no longer exist.
        SinkError: The topic does not exist, cannot be read, or has values of another format.
    """
    pieces = _pieces(connection, config, table, schemas)
    try:
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
    finally:
        # Nothing else closes the generator. `close` raises ValueError while a cancelled thread
        # still runs it.
        with suppress(ValueError):
            await asyncio.to_thread(pieces.close)


def _pieces(
    connection: Connection, config: KafkaSinkConfig, table: str, schemas: TableSchemas
) -> Generator[Sequence[bytes]]:
    is_decoded = config.is_structured or config.data_format in _READ_BACK
    read = schemas.reader().read if is_decoded else _as_they_are
    with connection.consumer() as consumer, connection.calls("does not return its records"):
        for topic in _topics(consumer, config, table):
            for partition in sorted(consumer.partitions_for_topic(topic) or ()):
                for values in _values(consumer, TopicPartition(topic, partition)):
                    yield read(values)


def _as_they_are(values: Sequence[bytes]) -> Sequence[bytes]:
    return values


def _topics(consumer: KafkaConsumer, config: KafkaSinkConfig, table: str) -> list[str]:
    template = TopicTemplate.parse(config.topic)
    found = sorted(
        name for name in consumer.topics() if template.can_produce(table, plain_topic(config, name))
    )
    if not found:
        raise SinkError(
            f"There is no topic {template.text!r}.", remedy="Check that the pipeline has run."
        )
    return found


def _values(consumer: KafkaConsumer, topic_partition: TopicPartition) -> Iterator[Sequence[bytes]]:
    first = int(consumer.beginning_offsets([topic_partition])[topic_partition])
    if first > 0:
        raise SinkRefusedError(
            f"Partition {topic_partition.partition} of the topic {topic_partition.topic} begins"
            f" at offset {first}: its first records no longer exist, because of retention or"
            " because they were deleted, so the rest cannot be compared with the table.",
            remedy="Verify topics with retention.ms=-1 and retention.bytes=-1.",
        )
    until = int(consumer.end_offsets([topic_partition])[topic_partition])
    consumer.assign([topic_partition])
    consumer.seek(topic_partition, 0)
    for records in read_partition(consumer, topic_partition, until, max_records=_MAX_RECORDS):
        if values := [record.value for record in records if record.value is not None]:
            yield values
