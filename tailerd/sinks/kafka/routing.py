"""Route the rows of a commit to topics and partitions. Pure except for a counter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import (
    CommitAheadError,
    ConfigError,
    IncompatibleSchemaError,
    SinkRefusedError,
)
from tailerd.pipeline_names import table_of
from tailerd.records.base import EventOptions, FormatOptions, Header, Records
from tailerd.records.debezium import DebeziumEncoder
from tailerd.records.json_text import timestamp_text
from tailerd.records.schema_changes import SchemaChange
from tailerd.sinks.kafka.config import CLOUD_EVENTS, ColumnPartition, KafkaSinkConfig
from tailerd.sinks.kafka.produce_request import ProduceRequest
from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions, explicit_partitions
from tailerd.sinks.record_formats import record_format
from tailerd.sinks.topics.control_records import ControlRecord
from tailerd.sinks.topics.templates import TopicTemplate, filled_text, table_texts

_MAX_PARTITIONS = 2**31 - 1
_GENERATION = re.compile(r"\.v(?:[2-9]|[1-9]\d+)\Z")


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of records of one schema.

    Attributes:
        suffix: Suffix of the topics' names: empty, `.v2`, `.v3`, ...
        is_dead_letter: Whether they go to the dead-letter topic instead.
    """

    suffix: str = ""
    is_dead_letter: bool = False


TOPIC = Destination()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRecords:
    """Records of one commit and one topic.

    Attributes:
        topic: Their destination.
        records: The records, in order.
        headers: Their headers, each with one value for all or a column of values.
        reason: Error code if they are dead letters, otherwise empty.
    """

    topic: str
    records: Records
    headers: tuple[Header, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """The properties of a topic that routing needs.

    Attributes:
        partitions: Number of partitions.
        max_bytes: The largest batch it accepts.
        retention_ms: Age, by its timestamp, at which a record is deleted; None: never.
        ahead_ms: How far in the future a record's timestamp may be; None: no limit.
    """

    partitions: int
    max_bytes: int
    retention_ms: int | None = None
    ahead_ms: int | None = None

    def check_time(self, topic: str, time_ms: int, now_ms: int, *, version: int) -> None:
        """Check that the topic accepts and retains a record with a timestamp.

        Args:
            topic: Its name.
            time_ms: The record's timestamp.
            now_ms: Milliseconds since the epoch.
            version: Version of the record's commit.

        Raises:
            SinkRefusedError: It would be deleted at once.
            CommitAheadError: Its timestamp is too far in the future.
        """
        if self.retention_ms is not None and now_ms - time_ms > self.retention_ms:
            raise _too_old(version, time_ms, topic, self.retention_ms)
        if self.ahead_ms is not None and time_ms - now_ms > self.ahead_ms:
            raise too_far_ahead(version, time_ms, f"the topic {topic}", self.ahead_ms)


class Router:
    """Chooses topic, partition and headers of the records of one table."""

    def __init__(self, config: KafkaSinkConfig, table: str) -> None:
        self._config, self._table = config, table_of(table)
        self._topics = TopicRouter(TopicTemplate.parse(config.topic), table, config.headers)
        self._partition = config.partition
        self._is_commit_time = config.timestamp == "commit"
        self._keyless = 0

    def fixed_topic(self) -> str | None:
        """Return the only topic of the table; None if a column chooses."""
        return self._topics.fixed_topic()

    def by_topic(
        self, batch: ChangeBatch, records: Records, destination: Destination = TOPIC
    ) -> Iterator[RoutedRecords]:
        """Yield the records of each topic, in their order.

        Dead letters keep key, value and headers, and have headers with the reason and the intended
        topic.

        Args:
            batch: The rows.
            records: The rows, encoded by a format.
            destination: The destination for their schema.

        Raises:
            ConfigError, SinkRefusedError: As `route`.
        """
        headers = self.make_headers(batch)
        for topic, part in self._topics.by_topic(batch, records):
            own = (*headers, *part.headers)
            if destination.is_dead_letter:
                yield RoutedRecords(
                    topic=self._config.name_topic(
                        self._config.dead_letter_topic or "", self._table
                    ),
                    records=part,
                    headers=(*own, *self._reasons(topic, batch.version)),
                    reason=IncompatibleSchemaError.code,
                )
            else:
                name = f"{topic}{destination.suffix}"
                yield RoutedRecords(topic=name, records=part, headers=own)

    def route(
        self,
        batch: ChangeBatch,
        records: Records,
        shape_of: Callable[[str], TopicShape],
        *,
        now_ms: int,
        destination: Destination = TOPIC,
    ) -> Iterator[ProduceRequest]:
        """Yield the records by topic, each topic's in their order.

        Args:
            batch: The rows.
            records: The rows, encoded by a format.
            shape_of: Returns the properties of a topic; may raise.
            now_ms: Milliseconds since the epoch.
            destination: The destination for their schema.

        Raises:
            ConfigError: A column is missing, has no strings for topics, or no valid partition.
            SinkRefusedError: A value is not valid in a topic's name, or the topic would not retain
                rows as old as these.
            CommitAheadError: The rows' timestamp is too far in the future for the topic.
        """
        time_ms = batch.timestamp_us // 1000 if self._is_commit_time else now_ms
        for routed in self.by_topic(batch, records, destination):
            shape = shape_of(routed.topic)
            shape.check_time(routed.topic, time_ms, now_ms, version=batch.version)
            yield ProduceRequest(
                topic=routed.topic,
                records=routed.records,
                partitions=self._partitions(batch, routed, shape.partitions),
                timestamps_ms=time_ms,
                headers=routed.headers,
                max_bytes=shape.max_bytes,
            )

    def named_partitions(
        self, batch: ChangeBatch, routed: RoutedRecords, count: int = _MAX_PARTITIONS
    ) -> int | npt.NDArray[np.integer] | None:
        """Return the partitions set by the configuration or a column; None: the key chooses.

        Dead letters go to the first partition.

        Args:
            batch: The rows.
            routed: The records of one topic.
            count: The topic's number of partitions, for numbers in a column.

        Raises:
            ConfigError: The column is missing, or has no valid partition.
        """
        if routed.reason:
            return 0
        if isinstance(self._partition, ColumnPartition):
            name = self._partition.column
            numbers = routed.records.from_rows(require_column(batch, name, "partition"))
            return explicit_partitions(numbers, count, column=name)
        return self._partition if isinstance(self._partition, int) else None

    def _partitions(
        self, batch: ChangeBatch, routed: RoutedRecords, count: int
    ) -> int | npt.NDArray[np.integer]:
        named = self.named_partitions(batch, routed, count)
        if isinstance(named, int) and named >= count:
            raise no_partition(named, routed.topic, count)
        if named is not None:
            return named
        if count == 1:
            return 0
        records = routed.records
        chosen = assign_partitions(records.keys, len(records), count, keyless_before=self._keyless)
        self._keyless += chosen.num_keyless
        return chosen.partitions

    def _reasons(self, topic: str, version: int) -> tuple[Header, ...]:
        reasons = {
            "tailerd.reason": IncompatibleSchemaError.code,
            "tailerd.table": self._table,
            "tailerd.topic": topic,
            "tailerd.commit_version": str(version),
        }
        return tuple(Header(name=name, value=text.encode()) for name, text in reasons.items())

    def make_headers(self, batch: ChangeBatch) -> tuple[Header, ...]:
        """Return the headers of the records of a batch."""
        headers = self._topics.make_headers(batch)
        return tuple(Header(name=name, value=text.encode()) for name, text in headers.items())


def plain_topic(config: KafkaSinkConfig, topic: str) -> str:
    """Return the configured topic for one that was created for an incompatible schema."""
    registry = config.schema_registry
    if registry is None or registry.on_incompatible_schema != "new_topic":
        return topic
    return _GENERATION.sub("", topic)


def format_options(config: KafkaSinkConfig, table: str, table_id: str) -> FormatOptions:
    """Return the options of a sink's value format for a table."""
    options = FormatOptions(
        name=config.topic_prefix,
        table=table_of(table),
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
    names = {**table_texts(table), "topic_prefix": config.topic_prefix}
    return replace(
        options,
        events=EventOptions(
            data=record_format(events.data, options),
            mode=events.mode,
            source=filled_text(events.source, names),
        ),
    )


def schema_record(
    config: KafkaSinkConfig, table: str, table_id: str, change: SchemaChange, now_ms: int
) -> ControlRecord:
    """Return the record of a change of the columns, in the form of the rows' values.

    It has the time of the delivery: as old as its commit, the topic might delete it at once.
    """
    if config.data_format == "debezium" or config.is_enveloped:
        name = config.topic_prefix
        encoder = DebeziumEncoder(name=name, table=table, table_id=table_id, key=config.key)
        key, value = {"databaseName": ""}, encoder.encode_schema(change, now_us=now_ms * 1000)
    else:
        key = {"table": table}
        value = json.dumps({**key, **change.to_json(), "ts_ms": now_ms}, ensure_ascii=False)
    return ControlRecord(
        topic=config.name_topic(config.schema_change_topic or "", table),
        key=json.dumps(key),
        value=value,
        timestamp_ms=now_ms,
    )


def no_partition(partition: int, topic: str, count: int) -> ConfigError:
    """Return the error for a partition that a topic does not have."""
    return ConfigError(
        f"partition is {partition}, and the topic {topic} has the partitions 0 to {count - 1}.",
        remedy="Correct `partition`, or give the topic more partitions.",
    )


def _too_old(version: int, time_ms: int, topic: str, retention_ms: int) -> SinkRefusedError:
    """Return the error for rows of a commit that a topic would not retain."""
    return SinkRefusedError(
        f"Version {version} is dated {timestamp_text(time_ms * 1000)}, and the topic {topic}"
        f" deletes records that are {retention_ms / 86_400_000:g} days old by their timestamp, so"
        " its rows would be deleted soon after delivery.",
        remedy="Raise retention.ms of the topic (-1: unlimited), or set `timestamp: delivery`.",
    )


def too_far_ahead(
    version: int, time_ms: int, what: str, ahead_ms: int | None = None
) -> CommitAheadError:
    """Return the error for rows of a commit whose time is too far in the future for Kafka.

    Args:
        version, time_ms: Of the commit.
        what: The subject of the message: `the topic orders`.
        ahead_ms: The topic's limit; None if it is unknown here.
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


_MAX_TOPICS = 1000
"""Maximum for one batch: a column with more values is not meant to choose topics."""


class TopicRouter:
    """Chooses topics and headers of the records of one table."""

    def __init__(self, template: TopicTemplate, table: str, headers: Mapping[str, str]) -> None:
        """Initialize.

        Args:
            template: Template of the topic's name.
            table: The configured name of the table.
            headers: Headers of every record, by name; may contain `HEADER_PLACEHOLDERS`.
        """
        self._table = table
        self._template = template
        self._headers = dict(headers)

    def fixed_topic(self) -> str | None:
        """Return the only topic of the table; None if a column chooses the topic."""
        return None if self._template.column else self._template.topic(self._table)

    def make_headers(self, batch: ChangeBatch) -> dict[str, str]:
        """Return the headers of the records of a batch, by name."""
        if not self._headers:
            return {}
        values = {
            **table_texts(self._table),
            "commit_version": str(batch.version),
            "commit_timestamp": timestamp_text(batch.timestamp_us),
            "change_source": batch.change_source.value,
        }
        return {name: filled_text(text, values) for name, text in self._headers.items()}

    def by_topic(self, batch: ChangeBatch, records: Records) -> Iterator[tuple[str, Records]]:
        """Yield each topic with its records, in their order.

        Raises:
            ConfigError: The column is missing, or cannot be converted to text.
            SinkRefusedError: A value is null, or not valid in a topic's name.
        """
        if self._template.column is None:
            yield self._template.topic(self._table), records
            return
        column = records.from_rows(require_column(batch, self._template.column, "topic"))
        values = _texts(column, self._template.column)
        coded = pc.dictionary_encode(values, null_encoding="encode")
        if len(coded.dictionary) > _MAX_TOPICS:
            raise ConfigError(
                f"The column {self._template.column!r} chooses among more than {_MAX_TOPICS}"
                " topics in one batch.",
                remedy="Choose the topic by a column with few values.",
            )
        codes = coded.indices.to_numpy(zero_copy_only=False)
        for code, value in enumerate(coded.dictionary.to_pylist()):
            yield self._choose_topic(value), records.take(np.flatnonzero(codes == code))

    def _choose_topic(self, value: str | None) -> str:
        if value is None:
            raise SinkRefusedError(
                f"A row has no value in the column {self._template.column!r}, which chooses its"
                " topic.",
                remedy="Fill the column, or name one topic.",
            )
        try:
            return self._template.topic(self._table, value)
        except ValueError as error:
            raise SinkRefusedError(
                f"A value of the column {self._template.column!r} does not choose a topic:"
                f" {error}.",
                remedy="Choose the topic by another column, or name one topic.",
            ) from error


def require_column(batch: ChangeBatch, name: str, chooses: str) -> pa.Array:
    """Return the column that chooses each row's topic or partition; `chooses` is for the error.

    Raises:
        ConfigError: The table has no such column.
    """
    index = batch.rows.schema.get_field_index(name)
    if index < 0:
        raise ConfigError(
            f"The column {name!r}, which chooses the {chooses}, is not in the table.",
            remedy=f"Its columns are: {', '.join(batch.rows.schema.names)}.",
        )
    return batch.rows.column(index)


def _texts(values: pa.Array, name: str) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowException:
        # Arrow's message may contain values.
        is_bytes = pa.types.is_binary(values.type)
        why = "it has bytes that are not text" if is_bytes else f"its type is {values.type}"
        raise ConfigError(
            f"The column {name!r} cannot choose the topic, because {why}.",
            remedy="Choose the topic by a column of texts or numbers, or name one topic.",
        ) from None
