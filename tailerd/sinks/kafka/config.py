"""The section of the Kafka sink; separate from the sink, so that validation imports no client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tailerd.config import SinkConfig, SizeBytes
from tailerd.config.values import Seconds, parse_address
from tailerd.registry import FORMATS_WITH_SCHEMAS, VALUE_FORMATS, value_format_names
from tailerd.sinks.kafka.producer_options import OptionValue, checked_options
from tailerd.sinks.kafka.schema_registry.config import SchemaRegistryConfig
from tailerd.sinks.topics.templates import (
    HEADER_PLACEHOLDERS,
    TABLE_NAMES,
    TopicTemplate,
    check_placeholders,
    check_topic_name,
    filled_text,
    table_texts,
)

Delivery = Literal["at-least-once", "exactly-once"]
OFFSETS_TOPIC = "__tailerd_offsets"
CLOUD_EVENTS = "cloudevents"
SOURCE_PLACEHOLDERS = (*TABLE_NAMES, "topic_prefix")

_SECTION = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class CreateTopicConfig(BaseModel):
    """Settings of topics that do not exist and are created."""

    model_config = _SECTION

    partitions: int = Field(
        default=1, ge=1, le=10_000, description="Number of partitions.", examples=[4]
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description="Copies of each partition; by default the brokers' setting.",
        examples=[3],
    )
    configs: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of the topic, by Kafka's own names.",
        examples=[{"min.insync.replicas": "2"}],
        json_schema_extra={"additionalProperties": {"type": ["string", "number", "boolean"]}},
    )

    @field_validator("configs", mode="before")
    @classmethod
    def _spell_as_kafka_does(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {k: str(v).lower() if isinstance(v, bool) else v for k, v in value.items()}


class CloudEventsConfig(BaseModel):
    """Attributes and data of the events."""

    model_config = _SECTION

    data: str = Field(
        default="json", description="Value format of the data in events.", examples=["json"]
    )
    mode: Literal["binary", "structured"] = Field(
        default="binary",
        description="`binary`: the value is the data, and headers hold the rest; `structured`: the"
        " value is a JSON object with all of it.",
        examples=["binary"],
    )
    source: str = Field(
        default="/{topic_prefix}/{table}",
        min_length=1,
        description="URI reference of the context of the events; `{table}` and `{topic_prefix}` are"
        " filled in. With it the ids of a table's events are unique.",
        examples=["/lake/{table}"],
    )

    @field_validator("data")
    @classmethod
    def _is_a_value_format(cls, value: str) -> str:
        if value not in (names := sorted({*value_format_names()} - {CLOUD_EVENTS})):
            raise ValueError(f"write one of {', '.join(names)}")
        return value

    @field_validator("source")
    @classmethod
    def _has_known_placeholders(cls, value: str) -> str:
        check_placeholders(value, SOURCE_PLACEHOLDERS)
        return value


class ColumnPartition(BaseModel):
    """The partition is the number in a column."""

    model_config = _SECTION

    column: str = Field(min_length=1, description="A column of whole numbers.", examples=["shard"])


class KafkaSinkConfig(SinkConfig):
    """A Kafka topic, or several."""

    implementation: ClassVar[str] = "tailerd.sinks.kafka.sink:KafkaSink"

    kind: Literal["kafka"] = Field(description="Kafka topics.")
    bootstrap_servers: list[str] = Field(
        min_length=1,
        description="Brokers to connect to first, host:port.",
        examples=[["127.0.0.1:9092"]],
    )
    topic: str = Field(
        min_length=1,
        description="Where changes go. `{table}` is the configured name of the table;"
        " `{column:NAME}` the value of a column, which chooses the topic of each row.",
        examples=["orders.changes"],
    )
    key: list[str] = Field(
        default_factory=list,
        description="Columns that make the key of a record; all changes of one key are in one"
        " partition, in the order of the commits. Without it records have no keys.",
        examples=[["order_id"]],
    )
    format: str = Field(
        default="json",
        description="`json`: the row with the change columns; `debezium`: its envelope, in which"
        " the two images of an update are one record; `avro`, `protobuf`, `json_schema`: values and"
        " keys whose schemas are in `schema_registry`; `cloudevents`; or the name of another value"
        " format that is installed.",
        examples=["debezium"],
    )
    envelope: Literal["none", "debezium"] = Field(
        default="none",
        description="Content of a value of `avro`, `protobuf` or `json_schema`: the row with the"
        " change columns, or Debezium's envelope.",
    )
    schema_registry: SchemaRegistryConfig | None = Field(
        default=None,
        description="Where the schemas of keys and values are registered.",
        examples=[{"urls": ["http://127.0.0.1:8081"]}],
    )
    collections: Literal["repeated", "wrapped"] = Field(
        default="repeated",
        description="How `protobuf` writes lists and maps: `repeated` cannot hold a null list or a"
        " null in a list; `wrapped` puts each into a message, so that nothing is lost.",
        examples=["wrapped"],
    )
    cloudevents: CloudEventsConfig = Field(
        default=CloudEventsConfig(),
        description="Attributes and data of events of the format `cloudevents`.",
        examples=[{"data": "json", "mode": "structured"}],
    )
    decimals: Literal["string", "number"] = Field(
        default="string", description="How decimals are written.", examples=["string"]
    )
    schemas: bool = Field(
        default=False,
        description="Whether keys and values carry their Kafka Connect schema (debezium).",
        examples=[False],
    )
    tombstones: bool = Field(
        default=True,
        description="Whether a record without value follows each delete, for compacted topics"
        " (debezium, where there is a key).",
        examples=[True],
    )
    topic_prefix: str = Field(
        default="tailerd",
        min_length=1,
        description="Logical name of the server in the envelope, `source.name` (debezium).",
        examples=["lake"],
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers of every record. Placeholders: `{table}`, `{commit_version}`,"
        " `{commit_timestamp}`, `{change_source}`.",
        examples=[{"origin": "lake", "version": "{commit_version}"}],
    )
    event_ids: bool | None = Field(
        default=None,
        description="Whether each record has the header `tailerd.id`: table id, version and"
        " position of the row in its commit. It is the same in every delivery, so readers can skip"
        " duplicates. Default: with at-least-once. Events have it as their id.",
        examples=[True],
    )
    partition: Literal["key"] | int | ColumnPartition = Field(
        default="key",
        description="`key`: Kafka's default, a hash of the key, records without one spread evenly;"
        " a number: that partition; `{column: NAME}`: the number in that column.",
        examples=["key"],
    )
    timestamp: Literal["commit", "delivery"] = Field(
        default="commit",
        description="Time of the records: of the commit, or of the delivery. A topic deletes"
        " records by this time, so rows of commits older than its retention are refused with"
        " `commit`.",
        examples=["commit"],
    )
    delivery: Delivery = Field(
        default="at-least-once",
        description="`exactly-once` puts rows and offset into one transaction: readers with"
        " isolation.level=read_committed see each change once, also after crashes.",
        examples=["exactly-once"],
    )
    offsets: Literal["kafka", "state"] | None = Field(
        default=None,
        description="Where the offset is kept: in `offsets_topic`, or in the folder `state`."
        " Default: `kafka` for exactly-once, which needs it, else `state`.",
        examples=["kafka"],
    )
    offsets_topic: str = Field(
        default=OFFSETS_TOPIC,
        description="Compacted topic of offsets, created if it does not exist; pipelines share it.",
        examples=[OFFSETS_TOPIC],
    )
    transactional_id: str | None = Field(
        default=None,
        min_length=1,
        description="Identity of this pipeline for exactly-once, the same in every run; a second"
        " process with it fences the first. Default: tailerd-<name>-<table>-<topic>-<digest>, so"
        " rights need the prefix tailerd-.",
        examples=["tailerd-orders"],
    )
    create_topic: CreateTopicConfig | None = Field(
        default=None,
        description="Create topics that do not exist; if false, they must exist.",
        examples=[
            {"partitions": 4, "replication_factor": 3, "configs": {"min.insync.replicas": "2"}}
        ],
    )
    on_oversize: Literal["fail", "dead-letter"] = Field(
        default="fail",
        description="What to do with a record larger than the topic takes: stop, or write its key"
        " and the reason to `dead_letter_topic` and continue.",
        examples=["fail"],
    )
    dead_letter_topic: str | None = Field(
        default=None,
        description="Topic for what cannot be delivered; the reason is in the headers.",
        examples=["orders.changes.dead"],
    )
    max_in_flight_bytes: SizeBytes = Field(
        default=32 * 1024**2,
        ge=64 * 1024,
        le=1024**4,
        description="Bytes handed over and not yet acknowledged, beyond which reading waits.",
        examples=["32MiB"],
    )
    transaction_topic: str | None = Field(
        default=None,
        description="Topic for a BEGIN and an END record around each commit, as Debezium writes"
        " them; gaps are written there too.",
        examples=["orders.transactions"],
    )
    schema_change_topic: str | None = Field(
        default=None,
        description="Topic for a record of each change of the delivered columns, before the first"
        " row that has it: as Debezium writes them, or as JSON where values are not Debezium's.",
        examples=["orders.schema-changes"],
    )
    heartbeat_interval: Seconds | None = Field(
        default=None,
        ge=0.1,
        le=86400,
        description="Time between two heartbeat records of this pipeline, with a unit.",
        examples=["10s"],
    )
    heartbeat_topic: str = Field(
        default="__tailerd_heartbeat",
        description="Topic of the heartbeats.",
        examples=["__tailerd_heartbeat"],
    )
    producer: dict[str, OptionValue] = Field(
        default_factory=dict,
        description="Options of kafka-python's producer, by its own names, TLS and SASL among"
        " them. Passwords are better given as TAILERD__TABLES__<NAME>__SINK__PRODUCER__....",
        examples=[{"compression_type": "zstd"}],
        json_schema_extra={
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]}
        },
    )

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _is_a_list(cls, value: object) -> object:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_addresses(cls, value: list[str]) -> list[str]:
        for server in value:
            parse_address(server)
        return value

    @field_validator("topic")
    @classmethod
    def _is_a_template(cls, value: str) -> str:
        TopicTemplate.parse(value)
        return value

    @field_validator("format")
    @classmethod
    def _is_a_value_format(cls, value: str) -> str:
        if value not in (names := value_format_names()):
            raise ValueError(f"write one of {', '.join(names)}")
        return value

    @field_validator(
        *("dead_letter_topic", "transaction_topic", "schema_change_topic"),
        *("heartbeat_topic", "offsets_topic"),
    )
    @classmethod
    def _is_a_topic(cls, value: str | None) -> str | None:
        if value is not None:
            check_placeholders(value, TABLE_NAMES)
            check_topic_name(filled_text(value, dict.fromkeys(TABLE_NAMES, "x")))
        return value

    @field_validator("headers")
    @classmethod
    def _have_known_placeholders(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            check_placeholders(text, HEADER_PLACEHOLDERS)
        return value

    @field_validator("partition", mode="before")
    @classmethod
    def _is_a_partition(cls, value: object) -> object:
        # Environment variables contain numbers as text.
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        is_column = isinstance(value, ColumnPartition) or (
            isinstance(value, dict) and list(value) == ["column"]
        )
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if value != "key" and not is_column and not is_number:
            raise ValueError("write key, a number from 0, or {column: NAME}")
        return value

    @field_validator("producer", mode="before")
    @classmethod
    def _are_options(cls, value: object, info: ValidationInfo) -> object:
        # Before type validation: errors use the options' own terms, and secrets are wrapped before
        # anything could show them.
        if not isinstance(value, dict):
            return value
        return checked_options(value, info.data.get("delivery", "at-least-once"))

    @model_validator(mode="after")
    def _fits_together(self) -> KafkaSinkConfig:
        if self.delivery == "exactly-once" and self.offsets == "state":
            raise ValueError(
                "delivery is exactly-once, so the offset goes into the transaction: set offsets to"
                " kafka, or leave it out"
            )
        if self.delivery == "at-least-once" and self.transactional_id is not None:
            raise ValueError("transactional_id is for exactly-once; leave it out")
        if self.on_oversize == "dead-letter" and self.dead_letter_topic is None:
            raise ValueError("on_oversize is dead-letter, so name the dead_letter_topic")
        if self.schema_change_topic == self.topic:
            raise ValueError(
                "schema_change_topic is the topic of the rows, whose readers expect only rows: name"
                f" another one, such as {self.topic}.schema-changes"
            )
        if fault := self._schema_fault():
            raise ValueError(fault)
        return self

    def _schema_fault(self) -> str:
        """Return the error in the settings for schemas; empty if there is none."""
        registry = self.schema_registry
        if self.data_format not in FORMATS_WITH_SCHEMAS:
            return "envelope is for avro, protobuf and json_schema" if self.is_enveloped else ""
        if registry is None:
            return f"values of the format {self.data_format} need a schema_registry: set its urls"
        by_column = TopicTemplate.parse(self.topic).column is not None
        if by_column and registry.subject_strategy != "record":
            return (
                "a column chooses the topic, so that subjects cannot be named after it: set"
                " schema_registry.subject_strategy to record"
            )
        if registry.on_incompatible_schema == "dead_letter" and self.dead_letter_topic is None:
            return "on_incompatible_schema is dead_letter, so name the dead_letter_topic"
        return ""

    def location(self) -> str:
        """Return the configured transactional id: two pipelines with it would fence each other."""
        if self.transactional_id is None:
            return ""
        return f"transactional_id {self.transactional_id} at {','.join(self.bootstrap_servers)}"

    def identity_location(self) -> str:
        """Return the configured topic; only the brokers know the cluster's id."""
        return self.topic

    def offsets_location(self) -> str:
        """Return the offsets topic, if offsets are stored in Kafka."""
        return f"the topic {self.offsets_topic}" if self.stores_offsets else ""

    @property
    def has_event_ids(self) -> bool:
        """Return whether records have their ids in a header."""
        return not self.is_exactly_once if self.event_ids is None else self.event_ids

    @property
    def data_format(self) -> str:
        """Return the value format; for events, the format of their data."""
        return self.cloudevents.data if self.format == CLOUD_EVENTS else self.format

    @property
    def has_schemas(self) -> bool:
        """Return whether a registry is configured and the value format may have schemas in it."""
        form = self.data_format
        is_known = form in VALUE_FORMATS and form not in FORMATS_WITH_SCHEMAS
        return self.schema_registry is not None and not is_known

    @property
    def is_structured(self) -> bool:
        """Return whether values are events that contain the values of another format."""
        return self.format == CLOUD_EVENTS and self.cloudevents.mode == "structured"

    @property
    def is_enveloped(self) -> bool:
        """Return whether values with registered schemas are Debezium's envelopes."""
        return self.envelope == "debezium"

    @property
    def has_incompatible_letters(self) -> bool:
        """Return whether rows whose schema is incompatible become dead letters."""
        registry = self.schema_registry
        return registry is not None and registry.on_incompatible_schema == "dead_letter"

    @property
    def is_exactly_once(self) -> bool:
        """Return whether rows and offset are written in one transaction."""
        return self.delivery == "exactly-once"

    @property
    def stores_offsets(self) -> bool:
        """Return whether the offset is stored in Kafka."""
        return self.is_exactly_once or self.offsets == "kafka"

    @property
    def routing_columns(self) -> tuple[str, ...]:
        """Return the columns whose values choose the topic or the partition of a row."""
        chosen = TopicTemplate.parse(self.topic).column
        columns = [] if chosen is None else [chosen]
        if isinstance(self.partition, ColumnPartition):
            columns.append(self.partition.column)
        return tuple(columns)

    def columns_by_field(self) -> Mapping[str, tuple[str, ...]]:
        """Return the columns of `key`, and those that choose topic and partition."""
        chosen = TopicTemplate.parse(self.topic).column
        found = {"key": tuple(self.key)}
        if chosen is not None:
            found["topic"] = (chosen,)
        if isinstance(self.partition, ColumnPartition):
            found["partition.column"] = (self.partition.column,)
        return found

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns of a record's key; empty without a key."""
        return tuple(self.key)

    @property
    def ordering_key(self) -> tuple[str, ...]:
        """Return the columns that identify a row for readers of a topic or partition.

        Empty without a key. Several rows may have one key if it is unique only within a topic; and
        an update that moves a row deletes it in one topic and writes it in the other.
        """
        return tuple(dict.fromkeys((*self.key, *self.routing_columns))) if self.key else ()

    def name_topic(self, text: str, table: str) -> str:
        """Return the name of one of the sink's other topics for a table."""
        return filled_text(text, table_texts(table))

    def guarantee(self) -> str:
        """Return the value of `delivery`."""
        return self.delivery
