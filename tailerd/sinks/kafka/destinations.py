"""The records of one table and their destination: its topic, or another one by schema."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import ConfigError, IncompatibleSchemaError, SchemaNotRegisteredError, SinkError
from tailerd.records import protobuf_values
from tailerd.records.avro_values import json_value, plain_schema
from tailerd.records.base import (
    FormatOptions,
    RecordFormat,
    RecordPart,
    Records,
    RecordSchema,
    SchemaRegistry,
)
from tailerd.records.decoded_values import Value
from tailerd.records.schemas.protobuf_parser import parsed_messages
from tailerd.records.schemas.record_shape import topic_name
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.routing import TOPIC, Destination, format_options
from tailerd.sinks.kafka.schema_registry.known_schemas import KnowingRegistry, KnownSchemas
from tailerd.sinks.kafka.schema_registry.subjects import Registry, TopicSubjects
from tailerd.sinks.record_formats import TableRecords
from tailerd.sinks.topics.templates import TopicTemplate

if TYPE_CHECKING:
    from tailerd.sinks.kafka.schema_registry.client import RegistryClient


_MAX_SCHEMAS = 8


Placed = tuple[Destination, RecordFormat]
"""The destination of records of one schema, and their format."""


class TableDestinations:
    """Encodes the records of one table and chooses their destination."""

    def __init__(
        self,
        config: KafkaSinkConfig,
        table: str,
        options: FormatOptions,
        registry: Registry | None,
    ) -> None:
        """Initialize; sends no request yet.

        Args:
            config: The sink's section.
            table: Configured name of the table.
            options: The value format's options.
            registry: The schema registry; None if none is configured.
        """
        self._config, self._table, self._options = config, table, options
        self._registry = registry
        self._plain = TableRecords(config.format, options)
        self._topics: dict[Destination, TableRecords] = {}
        self._chosen: OrderedDict[bytes, Placed] = OrderedDict()
        self._latest: tuple[pa.Schema, Placed] | None = None

    def records(
        self, batch: ChangeBatch, *, now_us: int | None = None
    ) -> tuple[Destination, Records]:
        """Return the records of a batch; for a new schema, queries the registry first.

        Args:
            batch, now_us: As for `RecordFormat.records`.

        Raises:
            IncompatibleSchemaError: The registry's rule forbids the schema, and the policy is stop.
            TailerdError: As `RecordFormat.prepare` and `RecordFormat.records`.
        """
        destination, records = self.prepare_schema(batch.rows.schema)
        return destination, records.records(batch, now_us=now_us)

    def prepare_schema(self, schema: pa.Schema) -> Placed:
        """Return the destination and the format of rows with a schema.

        Raises:
            TailerdError: As `records`.
        """
        if self._registry is None:
            return TOPIC, self._plain.prepare_schema(schema)
        if self._latest is not None and self._latest[0].equals(schema, check_metadata=True):
            return self._latest[1]
        text = schema.serialize().to_pybytes()
        found = self._chosen.pop(text, None) or self._assign_schema(schema, self._registry)
        self._chosen[text] = found
        if len(self._chosen) > _MAX_SCHEMAS:
            self._chosen.popitem(last=False)
        self._latest = schema, found
        return found

    def _assign_schema(self, schema: pa.Schema, registry: Registry) -> Placed:
        section = self._config.schema_registry
        policy = "stop" if section is None else section.on_incompatible_schema
        if policy == "new_topic":
            return self._in_newest(schema, registry)
        try:
            return self._into(TOPIC, schema, registry)
        except IncompatibleSchemaError:
            if policy == "stop":
                raise
            return self._into(Destination(is_dead_letter=True), schema, registry)

    def _in_newest(self, schema: pa.Schema, registry: Registry) -> Placed:
        """Return the topic with this schema, else the newest that allows it, else a new one."""
        used = list(self._list_used(schema, registry))
        for destination in used:
            known = replace(self._subjects(destination, registry), may_register=False)
            try:
                return destination, self._build_records(known).prepare_schema(schema)
            except SchemaNotRegisteredError:
                continue
        try:
            return self._into(used[-1] if used else TOPIC, schema, registry)
        except IncompatibleSchemaError:
            return self._into(_generation(len(used) + 1), schema, registry)

    def _list_used(self, schema: pa.Schema, registry: Registry) -> Iterator[Destination]:
        """Yield the topics that have a schema of values, the oldest first."""
        number = 1
        while True:
            destination = _generation(number)
            probe = _Probe(self._subjects(destination, registry))
            self._build_records(probe).prepare_schema(schema)
            if not probe.is_used:
                return
            yield destination
            number += 1

    def _into(self, destination: Destination, schema: pa.Schema, registry: Registry) -> Placed:
        if destination not in self._topics:
            self._topics[destination] = self._build_records(self._subjects(destination, registry))
        return destination, self._topics[destination].prepare_schema(schema)

    def _build_records(self, registry: SchemaRegistry) -> TableRecords:
        return TableRecords(self._config.format, self._options, registry)

    def _subjects(self, destination: Destination, registry: Registry) -> TopicSubjects:
        return topic_subjects(self._config, self._table, destination, registry)


def topic_subjects(
    config: KafkaSinkConfig, table: str, destination: Destination, registry: Registry
) -> TopicSubjects:
    """Return the subjects of the schemas for a destination.

    Args:
        config: The sink's section, with a registry.
        table: Configured name of the table.
        destination: The records' destination.
        registry: The schema registry.
    """
    section = config.schema_registry
    template = TopicTemplate.parse(config.topic)
    topic = config.topic if template.column else template.topic(table)
    subjects = TopicSubjects(
        registry=registry,
        topic=f"{topic}{destination.suffix}",
        strategy="topic" if section is None else section.subject_strategy,
        may_register=section is None or section.auto_register,
    )
    if not destination.is_dead_letter:
        return subjects
    letters = config.name_topic(config.dead_letter_topic or "", table)
    # Tables share the topic, so its subjects are named after their records too.
    return replace(subjects, topic=letters, strategy="topic_record", is_checked=False)


class TableSchemas:
    """A sink's cache of its table's schemas; outlives producers.

    The registry's client is imported and created with the first rows.

    Attributes:
        known: The schemas that the registry has confirmed.
    """

    def __init__(self, config: KafkaSinkConfig, table: str) -> None:
        self._config, self._table = config, table
        self._registry: RegistryClient | None = None
        self.known = KnownSchemas()
        self._table_id: str | None = None
        self._destinations: TableDestinations | None = None

    def for_table(self, table_id: str) -> TableDestinations:
        """Return the encoder of the table's records for a table id.

        Raises:
            ConfigError: Certificates for the registry cannot be read.
        """
        if self._destinations is None or table_id != self._table_id:
            options = format_options(self._config, self._table, table_id)
            client = self._client()
            registry = None if client is None else KnowingRegistry(client, self.known)
            self._destinations = TableDestinations(self._config, self._table, options, registry)
            self._table_id = table_id
        return self._destinations

    def check(self) -> None:
        """Check that the registry answers, if one is configured.

        Raises:
            TailerdError: It does not, or denies this user access.
        """
        client = self._client()
        if client is not None:
            options = format_options(self._config, self._table, "")
            name = f"{topic_name(options)}.Value"
            subjects = topic_subjects(self._config, self._table, TOPIC, client)
            client.check(subjects.subject("value", name))

    def reader(self) -> ValueReader:
        """Return a reader that decodes delivered values to JSON.

        Raises:
            ConfigError: Its dependencies are not installed.
        """
        client = self._client()
        try:
            from tailerd.sinks.kafka.destinations import ValueReader
        except ImportError as error:
            raise _not_installed(error) from error
        return ValueReader(self._config, client)

    def close(self) -> None:
        """Close connections to the registry; idempotent. Later use reopens them."""
        registry, self._registry, self._destinations = self._registry, None, None
        if registry is not None:
            registry.close()

    def _client(self) -> RegistryClient | None:
        section = self._config.schema_registry
        if section is not None and self._config.has_schemas and self._registry is None:
            try:
                # Imported here: it takes half a second, and most sinks have no registry.
                from tailerd.sinks.kafka.schema_registry.client import RegistryClient
            except ImportError as error:
                raise _not_installed(error) from error
            self._registry = RegistryClient(section, has_answered=not self.known.is_empty)
        return self._registry


def _not_installed(error: ImportError) -> ConfigError:
    return ConfigError(
        f"The client of schema registries cannot be loaded: {error}.",
        remedy="Install tailerd[registry].",
    )


class _Probe:
    """Finds out whether a topic has any schema of values."""

    def __init__(self, subjects: TopicSubjects) -> None:
        self._subjects = subjects
        self.is_used = False

    def earlier(self, part: RecordPart, name: str) -> str:
        return ""

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        """Check whether the subject has a schema; the returned ids have no meaning."""
        value = schemas[0]
        self.is_used = bool(self._subjects.earlier(value.part, value.name))
        return [0] * len(schemas)


def _generation(number: int) -> Destination:
    return TOPIC if number == 1 else Destination(f".v{number}")


_HEADER_BYTES = 5
_MAGIC = 0
_FIRST_MESSAGE = b"\0"
"""The message index of a schema's first message."""


class KnowsSchemas(Protocol):
    """Returns the texts of schemas by id. Blocking."""

    def read_text(self, schema_id: int) -> str:
        """Return the text of a schema; `SinkError` if it is missing or the registry is down."""
        ...


class ValueReader:
    """Decodes the values of a sink to JSON."""

    def __init__(self, config: KafkaSinkConfig, schemas: KnowsSchemas | None) -> None:
        """Initialize; sends no request yet.

        Args:
            config: The sink's section.
            schemas: Returns the schemas of values; None if no registry is configured.
        """
        self._schemas = schemas
        self._is_structured = config.is_structured
        self._form = config.data_format
        self._readers: dict[int, Callable[[bytes], bytes]] = {}

    def read(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Return the JSON text of each value.

        Raises:
            SinkError: A value has another format, or the registry does not answer.
        """
        return [self._text(value) for value in values]

    def _text(self, value: bytes) -> bytes:
        try:
            data = _event_data(value) if self._is_structured else value
            if self._form == "json_schema":
                return data[_HEADER_BYTES:]
            return self._register_value(data) if self._form in _READERS else data
        except (ValueError, KeyError, TypeError, IndexError, EOFError) as error:
            raise SinkError(
                f"A record is not a value of the format {self._form}: {value[:80]!r} ({error!r})."
                " Another program writes to the same topic.",
                remedy="Verify a topic that only this pipeline writes to.",
            ) from error

    def _register_value(self, value: bytes) -> bytes:
        if value[0] != _MAGIC or self._schemas is None:
            raise ValueError("it does not begin with the id of a schema")
        number = int.from_bytes(value[1:_HEADER_BYTES], "big")
        if number not in self._readers:
            self._readers[number] = _READERS[self._form](self._schemas.read_text(number))
        return self._readers[number](value[_HEADER_BYTES:])


def _event_data(value: bytes) -> bytes:
    event: dict[str, msgspec.Raw] = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    if (data := event.get("data")) is not None:
        return bytes(data)
    return b64decode(msgspec.json.decode(event["data_base64"], type=str))


def _avro_reader(text: str) -> Callable[[bytes], bytes]:
    # Of the extra `registry`, which topics in JSON do not need.
    import fastavro

    node: Any = json.loads(text)
    schema = fastavro.parse_schema(plain_schema(node))
    value: Value = json_value(node)

    def read(raw: bytes) -> bytes:
        decoded = fastavro.schemaless_reader(io.BytesIO(raw), schema, None)
        return msgspec.json.encode(value(decoded))

    return read


def _protobuf_reader(text: str) -> Callable[[bytes], bytes]:
    # Imported here: it takes a quarter of a second.
    from google.protobuf.message import DecodeError

    from tailerd.sinks.kafka.schema_registry.protobuf_messages import message_decoder

    package, messages = parsed_messages(text)
    decode = message_decoder(package, messages)
    value = protobuf_values.json_value(next(iter(messages)), messages)

    def read(raw: bytes) -> bytes:
        if raw[:1] != _FIRST_MESSAGE:
            raise ValueError("it is not the first message of its schema")
        try:
            return msgspec.json.encode(value(decode(raw[1:])))
        except DecodeError as error:
            raise ValueError("it is not a message of its schema") from error

    return read


_READERS: Mapping[str, Callable[[str], Callable[[bytes], bytes]]] = {
    "avro": _avro_reader,
    "protobuf": _protobuf_reader,
}
