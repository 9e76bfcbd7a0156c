"""From the rows of a commit to records of topics and partitions. Pure but for a counter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import CommitAheadError, ConfigError, SinkRefusedError
from tailerd.records.base import FormatOptions, Records
from tailerd.records.json_text import timestamp_text
from tailerd.sinks.kafka.config import ColumnPartition, KafkaSinkConfig
from tailerd.sinks.kafka.outgoing import Outgoing
from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions, explicit_partitions
from tailerd.sinks.kafka.record_batches.record_layout import Header
from tailerd.sinks.kafka.templates import TABLE_NAMES, TopicTemplate, filled_text

_MOST_TOPICS = 1000
"""Of one batch: a column with more values is no choice of topics."""

_MOST_PARTITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """What routing must know of a topic.

    Attributes:
        partitions: How many it has.
        max_bytes: The largest batch it takes.
        retention_ms: The age, by its timestamp, at which a record is deleted; None: at none.
        ahead_ms: How far ahead of now a record may be dated; None: as far as it likes.
    """

    partitions: int
    max_bytes: int
    retention_ms: int | None = None
    ahead_ms: int | None = None

    def check_time(self, topic: str, time_ms: int, now_ms: int, *, version: int) -> None:
        """Make sure that the topic takes and keeps a record of a time.

        Args:
            topic: Its name.
            time_ms: The record's timestamp.
            now_ms: Milliseconds since the epoch.
            version: Of the commit that the record is of.

        Raises:
            SinkRefusedError: It would be deleted right away.
            CommitAheadError: It is dated too far ahead.
        """
        if self.retention_ms is not None and now_ms - time_ms > self.retention_ms:
            raise _too_old(version, time_ms, topic, self.retention_ms)
        if self.ahead_ms is not None and time_ms - now_ms > self.ahead_ms:
            raise too_far_ahead(version, time_ms, f"the topic {topic}", self.ahead_ms)


class Router:
    """Chooses topic, partition and headers of the records of one table."""

    def __init__(self, config: KafkaSinkConfig, table: str) -> None:
        self._table = table
        self._template = TopicTemplate.parse(config.topic)
        self._partition = config.partition
        self._headers = dict(config.headers)
        self._is_commit_time = config.timestamp == "commit"
        self._keyless = 0

    def fixed_topic(self) -> str | None:
        """Return the one topic of the table; None where a column chooses."""
        return None if self._template.column else self._template.topic(self._table)

    def route(
        self,
        batch: ChangeBatch,
        records: Records,
        shape_of: Callable[[str], TopicShape],
        *,
        now_ms: int,
    ) -> Iterator[Outgoing]:
        """Yield the records by topic, each topic's in their order.

        Args:
            batch: The rows.
            records: What a format made of them.
            shape_of: Says what is known of a topic; may raise.
            now_ms: Milliseconds since the epoch.

        Raises:
            ConfigError: A column is missing, has no texts for topics, or names no partition.
            SinkRefusedError: A value is no part of a topic's name, or the topic would not keep
                rows as old as these.
            CommitAheadError: The topic takes no rows dated so far ahead yet.
        """
        headers = self.headers_of(batch)
        time_ms = batch.timestamp_us // 1000 if self._is_commit_time else now_ms
        for topic, part in self.by_topic(batch, records):
            shape = shape_of(topic)
            shape.check_time(topic, time_ms, now_ms, version=batch.version)
            yield Outgoing(
                topic=topic,
                records=part,
                partitions=self._partitions(batch, part, shape.partitions, topic),
                timestamps_ms=time_ms,
                headers=headers,
                max_bytes=shape.max_bytes,
            )

    def by_topic(self, batch: ChangeBatch, records: Records) -> Iterator[tuple[str, Records]]:
        """Yield each topic with its records, in their order.

        Raises:
            ConfigError, SinkRefusedError: As `route`.
        """
        if self._template.column is None:
            yield self._template.topic(self._table), records
            return
        column = records.of_rows(_column(batch, self._template.column, "topic"))
        values = _texts(column, self._template.column)
        coded = pc.dictionary_encode(values, null_encoding="encode")
        if len(coded.dictionary) > _MOST_TOPICS:
            raise ConfigError(
                f"The column {self._template.column!r} chooses among more than {_MOST_TOPICS}"
                " topics in one batch.",
                hint="Choose the topic by a column with few values.",
            )
        codes = coded.indices.to_numpy(zero_copy_only=False)
        for code, value in enumerate(coded.dictionary.to_pylist()):
            yield self._topic_of(value), records.take(np.flatnonzero(codes == code))

    def _topic_of(self, value: str | None) -> str:
        if value is None:
            raise SinkRefusedError(
                f"A row has no value in the column {self._template.column!r}, which chooses its"
                " topic.",
                hint="Fill the column, or name one topic.",
            )
        try:
            return self._template.topic(self._table, value)
        except ValueError as error:
            raise SinkRefusedError(
                f"A value of the column {self._template.column!r} chooses no topic: {error}.",
                hint="Choose the topic by another column, or name one topic.",
            ) from error

    def named_partitions(
        self, batch: ChangeBatch, records: Records, count: int = _MOST_PARTITIONS
    ) -> int | npt.NDArray[np.integer] | None:
        """Return the partitions that the configuration or a column names; None: the key chooses.

        Args:
            batch: The rows.
            records: Those of one topic.
            count: How many partitions the topic has, for numbers in a column.

        Raises:
            ConfigError: The column is missing, or names no partition.
        """
        if isinstance(self._partition, ColumnPartition):
            name = self._partition.column
            numbers = records.of_rows(_column(batch, name, "partition"))
            return explicit_partitions(numbers, count, column=name)
        return self._partition if isinstance(self._partition, int) else None

    def _partitions(
        self, batch: ChangeBatch, records: Records, count: int, topic: str
    ) -> int | npt.NDArray[np.integer]:
        named = self.named_partitions(batch, records, count)
        if isinstance(named, np.ndarray):
            return named
        if isinstance(self._partition, int):
            if self._partition >= count:
                raise no_partition(self._partition, topic, count)
            return self._partition
        if count == 1:
            return 0
        chosen = assign_partitions(records.keys, len(records), count, keyless_before=self._keyless)
        self._keyless += chosen.num_keyless
        return chosen.partitions

    def headers_of(self, batch: ChangeBatch) -> tuple[Header, ...]:
        """Return the headers of the records of a batch."""
        if not self._headers:
            return ()
        values = {
            **dict.fromkeys(TABLE_NAMES, self._table),
            "commit_version": str(batch.version),
            "commit_timestamp": timestamp_text(batch.timestamp_us),
            "change_source": batch.change_source.value,
        }
        return tuple(
            Header(name=name, value=filled_text(text, values).encode())
            for name, text in self._headers.items()
        )


def format_options(config: KafkaSinkConfig, table: str, table_id: str) -> FormatOptions:
    """Return what the value format of a sink is told of a table."""
    return FormatOptions(
        name=config.topic_prefix,
        table=table,
        table_id=table_id,
        key=config.key,
        routed_by=config.routing_columns,
        decimals=config.decimals,
        tombstones=config.tombstones,
        schemas=config.schemas,
    )


def _column(batch: ChangeBatch, name: str, chooses: str) -> pa.Array:
    index = batch.rows.schema.get_field_index(name)
    if index < 0:
        raise ConfigError(
            f"The column {name!r}, which chooses the {chooses}, is not in the table.",
            hint=f"Its columns are: {', '.join(batch.rows.schema.names)}.",
        )
    return batch.rows.column(index)


def _texts(values: pa.Array, name: str) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowException:
        # What Arrow says may hold values.
        is_bytes = pa.types.is_binary(values.type)
        why = "it has bytes that are no text" if is_bytes else f"its type is {values.type}"
        raise ConfigError(
            f"The column {name!r} cannot choose the topic, because {why}.",
            hint="Choose the topic by a column of texts or numbers, or name one topic.",
        ) from None


def no_partition(partition: int, topic: str, count: int) -> ConfigError:
    """Return the error for a partition that a topic does not have."""
    return ConfigError(
        f"partition is {partition}, and the topic {topic} has the partitions 0 to {count - 1}.",
        hint="Correct `partition`, or give the topic more partitions.",
    )


def _too_old(version: int, time_ms: int, topic: str, retention_ms: int) -> SinkRefusedError:
    """Return the error for rows of a commit that a topic would not keep."""
    return SinkRefusedError(
        f"Version {version} is of {timestamp_text(time_ms * 1000)}, and the topic {topic}"
        f" deletes records that are {retention_ms / 86_400_000:g} days old by their timestamp, so"
        " its rows would be gone soon after they are delivered.",
        hint="Raise retention.ms of the topic (-1: for ever), or set `timestamp: delivery`.",
    )


def too_far_ahead(
    version: int, time_ms: int, what: str, ahead_ms: int | None = None
) -> CommitAheadError:
    """Return the error for rows of a commit that is dated further ahead than Kafka takes records.

    Args:
        version, time_ms: Of the commit.
        what: Refuses them: `the topic orders`.
        ahead_ms: How far ahead it takes them; None where only brokers know.
    """
    limit, until = "so far", ""
    if ahead_ms is not None:
        limit = f"more than {ahead_ms / 3_600_000:g} h"
        until = f" It can be delivered from {timestamp_text((time_ms - ahead_ms) * 1000)} on."
    return CommitAheadError(
        f"Version {version} is dated {timestamp_text(time_ms * 1000)}, and {what} takes no records"
        f" dated {limit} ahead of the brokers' clock.{until}",
        hint="Wait, or raise message.timestamp.after.max.ms of the topic, or set"
        " `timestamp: delivery`.",
        version=version,
    )
