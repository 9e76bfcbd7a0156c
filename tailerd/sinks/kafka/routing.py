"""From the rows of a commit to records of topics and partitions. Pure but for a counter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import (
    CommitAheadError,
    ConfigError,
    IncompatibleSchemaError,
    SinkRefusedError,
)
from tailerd.records.base import EventOptions, FormatOptions, Header, Records
from tailerd.records.json_text import timestamp_text
from tailerd.sinks.kafka.config import CLOUD_EVENTS, ColumnPartition, KafkaSinkConfig
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions, explicit_partitions
from tailerd.sinks.record_formats import record_format
from tailerd.sinks.topics.routing import TopicRouter, column_of
from tailerd.sinks.topics.templates import TABLE_NAMES, TopicTemplate, filled_text

_MOST_PARTITIONS = 2**31 - 1
_GENERATION = re.compile(r"\.v(?:[2-9]|[1-9]\d+)\Z")


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
        self._config, self._table = config, table
        self._topics = TopicRouter(TopicTemplate.parse(config.topic), table, config.headers)
        self._partition = config.partition
        self._is_commit_time = config.timestamp == "commit"
        self._keyless = 0

    def fixed_topic(self) -> str | None:
        """Return the one topic of the table; None where a column chooses."""
        return self._topics.fixed_topic()

    def by_topic(self, batch: ChangeBatch, records: Records) -> Iterator[tuple[str, Records]]:
        """Yield each topic with its records, in their order; errors as of `route`."""
        return self._topics.by_topic(batch, records)

    def route(
        self,
        batch: ChangeBatch,
        records: Records,
        shape_of: Callable[[str], TopicShape],
        *,
        now_ms: int,
        suffix: str = "",
    ) -> Iterator[ProduceRequest]:
        """Yield the records by topic, each topic's in their order.

        Args:
            batch: The rows.
            records: What a format made of them.
            shape_of: Says what is known of a topic; may raise.
            now_ms: Milliseconds since the epoch.
            suffix: Of the topics' names, for records whose schema no longer fits the others.

        Raises:
            ConfigError: A column is missing, has no texts for topics, or names no partition.
            SinkRefusedError: A value is no part of a topic's name, or the topic would not keep
                rows as old as these.
            CommitAheadError: The topic takes no rows dated so far ahead yet.
        """
        headers = self.headers_of(batch)
        time_ms = batch.timestamp_us // 1000 if self._is_commit_time else now_ms
        for name, part in self.by_topic(batch, records):
            topic = f"{name}{suffix}"
            shape = shape_of(topic)
            shape.check_time(topic, time_ms, now_ms, version=batch.version)
            yield ProduceRequest(
                topic=topic,
                records=part,
                partitions=self._partitions(batch, part, shape.partitions, topic),
                timestamps_ms=time_ms,
                headers=(*headers, *part.headers),
                max_bytes=shape.max_bytes,
            )

    def incompatible(
        self,
        batch: ChangeBatch,
        records: Records,
        shape_of: Callable[[str], TopicShape],
        *,
        now_ms: int,
    ) -> Iterator[ProduceRequest]:
        """Yield the records of rows whose schema is incompatible, as dead letters.

        They keep key, value and headers, and say why they are there and where they were to go.

        Args:
            batch, records, shape_of, now_ms: As for `route`.

        Raises:
            ConfigError, SinkRefusedError: As `route`.
        """
        name = self._config.topic_of(self._config.dead_letter_topic or "", self._table)
        time_ms = batch.timestamp_us // 1000 if self._is_commit_time else now_ms
        shape = shape_of(name)
        for topic, part in self.by_topic(batch, records):
            reasons = {
                "tailerd.reason": IncompatibleSchemaError.code,
                "tailerd.table": self._table,
                "tailerd.topic": topic,
                "tailerd.commit_version": str(batch.version),
            }
            said = tuple(Header(name=key, value=text.encode()) for key, text in reasons.items())
            yield ProduceRequest(
                topic=name,
                records=part,
                partitions=0,
                timestamps_ms=time_ms,
                headers=(*self.headers_of(batch), *part.headers, *said),
                max_bytes=shape.max_bytes,
            )

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
            numbers = records.of_rows(column_of(batch, name, "partition"))
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
        headers = self._topics.headers_of(batch)
        return tuple(Header(name=name, value=text.encode()) for name, text in headers.items())


def plain_topic(config: KafkaSinkConfig, topic: str) -> str:
    """Return the configured topic of one that was made for rows of an incompatible schema."""
    registry = config.schema_registry
    if registry is None or registry.on_incompatible_schema != "new_topic":
        return topic
    return _GENERATION.sub("", topic)


def format_options(config: KafkaSinkConfig, table: str, table_id: str) -> FormatOptions:
    """Return what the value format of a sink is told of a table."""
    options = FormatOptions(
        name=config.topic_prefix,
        table=table,
        table_id=table_id,
        key=config.key,
        routed_by=config.routing_columns,
        decimals=config.decimals,
        tombstones=config.tombstones,
        schemas=config.schemas,
        envelope=config.envelope,
        collections=config.collections,
    )
    if config.format != CLOUD_EVENTS:
        return replace(options, has_ids=config.has_event_ids)
    events = config.cloudevents
    names = {**dict.fromkeys(TABLE_NAMES, table), "topic_prefix": config.topic_prefix}
    return replace(
        options,
        events=EventOptions(
            data=record_format(events.data, options),
            mode=events.mode,
            source=filled_text(events.source, names),
        ),
    )


def no_partition(partition: int, topic: str, count: int) -> ConfigError:
    """Return the error for a partition that a topic does not have."""
    return ConfigError(
        f"partition is {partition}, and the topic {topic} has the partitions 0 to {count - 1}.",
        remedy="Correct `partition`, or give the topic more partitions.",
    )


def _too_old(version: int, time_ms: int, topic: str, retention_ms: int) -> SinkRefusedError:
    """Return the error for rows of a commit that a topic would not keep."""
    return SinkRefusedError(
        f"Version {version} is of {timestamp_text(time_ms * 1000)}, and the topic {topic}"
        f" deletes records that are {retention_ms / 86_400_000:g} days old by their timestamp, so"
        " its rows would be gone soon after they are delivered.",
        remedy="Raise retention.ms of the topic (-1: for ever), or set `timestamp: delivery`.",
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
        remedy="Wait, or raise message.timestamp.after.max.ms of the topic, or set"
        " `timestamp: delivery`.",
        version=version,
    )
