"""The Kafka sink with a real schema registry: what others read, what a change of schema does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import (
    IncompatibleSchemaError,
    SchemaNotRegisteredError,
    SinkError,
    SinkRefusedError,
)
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.sink import KafkaSink
from tailerd.telemetry import Telemetry, events
from tests.integration.kafka.test_delivery import commit, make_rows, offset
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.schema_registry import SchemaRegistry
from tests.kafka.topics import Topics
from tests.records.protobuf_compiler import compiled_class

pytestmark = pytest.mark.kafka

FULL = pytest.mark.full
FORMATS = ["avro", "protobuf", "json_schema"]


@dataclass
class RegisteredTopic:
    """A topic with subjects of its own, and sinks that write there."""

    broker: Broker
    registry: SchemaRegistry
    topics: Topics
    reported: list[events.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = self.topics.new_name()
        self.client = SchemaRegistryClient({"url": self.registry.url})

    def section(self, **fields: Any) -> dict[str, Any]:
        registry = {"urls": [self.registry.url], **fields.pop("registry", {})}
        return {
            "kind": "kafka",
            "bootstrap_servers": self.broker.plain,
            "topic": self.topic,
            "key": ["id"],
            "create_topic": {},
            "schema_registry": registry,
            **fields,
        }

    @asynccontextmanager
    async def open(self, **fields: Any) -> AsyncIterator[KafkaSink]:
        """Give a sink that is ready to write."""
        config = KafkaSinkConfig.model_validate(self.section(**fields))
        sink = KafkaSink(config, table="orders", telemetry=Telemetry([self.reported.append]))
        try:
            await sink.fence()
            await sink.resume(offset(0))
            yield sink
        finally:
            await sink.aclose()

    def read(self, topic: str = "") -> list[Record]:
        return read_topic(self.broker.plain, topic or self.topic)

    def versions(self, subject: str) -> int:
        return len(self.client.get_versions(subject))

    def forbid(self, subject: str) -> None:
        """Let the registry allow only schemas that read what earlier ones wrote."""
        self.client.set_compatibility(subject, "BACKWARD")

    def avro(self, topic: str = "") -> list[Any]:
        return [
            AvroDeserializer(self.client)(record.value, context(topic or self.topic))
            for record in self.read(topic)
        ]


def context(topic: str, part: MessageField = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, part)


@pytest.fixture
def target(
    kafka_broker: Broker, schema_registry: SchemaRegistry, topics: Topics
) -> RegisteredTopic:
    return RegisteredTopic(kafka_broker, schema_registry, topics)


def rows(version: int, *ids: int, **columns: Any) -> ChangeBatch:
    return make_rows(version, id=list(ids), **columns)


def of_protobuf(target: RegisteredTopic, raw: bytes) -> dict[str, Any]:
    """Return a message as Confluent's deserializer reads it, by the schema the registry has.

    The class is protoc's of the registered text: this registry does not compile it, as the
    deserializer would ask it to.
    """
    schema = target.client.get_schema(int.from_bytes(raw[1:5], "big"))
    message = compiled_class(schema.schema_str or "", "Value")
    found = ProtobufDeserializer(message, {"use.deprecated.format": False})(raw, None)
    return MessageToDict(found, preserving_proto_field_name=True)


def read_values(target: RegisteredTopic, form: str) -> list[Any]:
    """Return the values of the topic as the peer's reader gives them."""
    where = context(target.topic)
    match form:
        case "avro":
            return target.avro()
        case "json_schema":
            read = JSONDeserializer(None, schema_registry_client=target.client)
            return [read(record.value, where) for record in target.read()]
    return [of_protobuf(target, record.value or b"") for record in target.read()]


@pytest.mark.parametrize("form", FORMATS)
async def test_rows_are_read_by_confluents_deserializers(
    target: RegisteredTopic, form: str
) -> None:
    batch = rows(0, 1, 2, name=["ä", None])
    async with target.open(format=form) as sink:
        await sink.healthcheck()
        assert await sink.write(commit(0, batch)) == 2
    found = read_values(target, form)
    assert [(int(row["id"]), row.get("name")) for row in found] == [(1, "ä"), (2, None)]
    assert [row["_change_type"] for row in found] == ["insert", "insert"]
    assert {f"{target.topic}-key", f"{target.topic}-value"} <= set(target.client.get_subjects())
    if form == "avro":
        keys = [
            AvroDeserializer(target.client)(record.key, context(target.topic, MessageField.KEY))
            for record in target.read()
        ]
        assert keys == [{"id": 1}, {"id": 2}]


@FULL
@pytest.mark.parametrize("form", ["avro", "json_schema"])
async def test_envelopes_are_those_of_debezium(target: RegisteredTopic, form: str) -> None:
    batch = rows(0, 1)
    gone = make_rows(1, ChangeType.DELETE, id=[1])
    async with target.open(format=form, envelope="debezium") as sink:
        await sink.write(commit(0, batch))
        await sink.write(commit(1, gone))
    made, removed, tombstone = target.read()
    found = read_values(target, form)
    assert found[2] is None
    assert [(each["op"], each["before"], each["after"]) for each in found[:2]] == [
        ("c", None, {"id": 1}),
        ("d", {"id": 1}, None),
    ]
    assert tombstone.value is None
    assert made.key == removed.key == tombstone.key


@pytest.mark.parametrize("form", [FORMATS[0], *(pytest.param(f, marks=FULL) for f in FORMATS[1:])])
async def test_a_new_column_registers_a_version_between_two_commits(
    target: RegisteredTopic, form: str
) -> None:
    first, second = rows(0, 1), rows(1, 2, name=["b"])
    async with target.open(format=form) as sink:
        await sink.write(commit(0, first))
        target.forbid(f"{target.topic}-value")
        await sink.write(commit(1, second))
        await sink.write(commit(2, rows(2, 3, name=["c"])))
    assert target.versions(f"{target.topic}-value") == 2
    assert target.versions(f"{target.topic}-key") == 1
    found = read_values(target, form)
    assert [(int(row["id"]), row.get("name")) for row in found] == [(1, None), (2, "b"), (3, "c")]


async def test_a_schema_that_the_registry_forbids_stops_before_any_row(
    target: RegisteredTopic,
) -> None:
    async with target.open(format="avro") as sink:
        await sink.write(commit(0, rows(0, 1, name=["a"])))
        target.forbid(f"{target.topic}-value")
        with pytest.raises(IncompatibleSchemaError, match=f"{target.topic}-value") as raised:
            await sink.write(commit(1, rows(1, 2, name=[5])))
    assert not raised.value.retryable
    assert [row["id"] for row in target.avro()] == [1]
    assert target.versions(f"{target.topic}-value") == 1


@FULL
async def test_rows_of_a_forbidden_schema_go_to_a_new_topic_also_after_a_restart(
    target: RegisteredTopic,
) -> None:
    fields: dict[str, Any] = {"registry": {"on_incompatible_schema": "new_topic"}}
    async with target.open(format="avro", **fields) as sink:
        await sink.write(commit(0, rows(0, 1, name=["a"])))
        target.forbid(f"{target.topic}-value")
        await sink.write(commit(1, rows(1, 2, name=[5])))
    target.forbid(f"{target.topic}.v2-value")
    async with target.open(format="avro", **fields) as sink:
        # What is known goes where it went, what is new goes on in the newest topic.
        await sink.write(commit(1, rows(1, 2, name=[5])))
        await sink.write(commit(2, rows(2, 3, name=["c"])))
        await sink.write(commit(3, rows(3, 4, name=[7], more=["x"])))
        await sink.write(commit(4, rows(4, 5, name=[True])))
    found = [[row["id"] for row in target.avro(f"{target.topic}{n}")] for n in ("", ".v2", ".v3")]
    assert found == [[1, 3], [2, 2, 4], [5]]


@FULL
@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("record", "tailerd.orders.Value"), ("topic_record", "{topic}-tailerd.orders.Value")],
)
async def test_subjects_are_named_by_the_strategy(
    target: RegisteredTopic, strategy: str, subject: str
) -> None:
    prefix = target.topics.new_name("prefix").replace("-", "_").replace(".", "_")
    section = {"registry": {"subject_strategy": strategy}, "topic_prefix": prefix}
    async with target.open(format="avro", **section) as sink:
        await sink.write(commit(0, rows(0, 1)))
    expected = subject.replace("tailerd", prefix).format(topic=target.topic)
    assert expected in target.client.get_subjects()
    assert [row["id"] for row in target.avro()] == [1]


async def test_a_schema_that_nobody_registered_is_named(target: RegisteredTopic) -> None:
    async with target.open(format="avro", registry={"auto_register": False}) as sink:
        with pytest.raises(SchemaNotRegisteredError, match=f"{target.topic}-value"):
            await sink.write(commit(0, rows(0, 1)))
    assert target.read() == []


@FULL
async def test_while_the_registry_hangs_deliveries_wait_and_known_schemas_go_on(
    target: RegisteredTopic,
) -> None:
    section = {"registry": {"timeout": "500ms", "retries": 0}}
    async with target.open(format="avro", **section) as sink:
        await sink.write(commit(0, rows(0, 1)))
        target.registry.pause()
        try:
            await sink.write(commit(1, rows(1, 2)))
            with pytest.raises(SinkError, match="cannot be reached") as raised:
                await sink.write(commit(2, rows(2, 3, name=["c"])))
            assert raised.value.retryable
        finally:
            target.registry.resume()
        await sink.fence()
        await sink.resume(offset(2))
        await sink.write(commit(2, rows(2, 3, name=["c"])))
    assert [row["id"] for row in target.avro()] == [1, 2, 3]


@pytest.mark.attack
@pytest.mark.parametrize("name", FORMATS)
async def test_after_a_restart_known_schemas_need_no_registry(
    target: RegisteredTopic, name: str
) -> None:
    async with target.open(format=name) as sink:
        await sink.write(commit(0, rows(0, 1)))
        kept = dict(sink.schemas)
    down = {"registry": {"urls": ["http://127.0.0.1:1"], "retries": 0, "timeout": "500ms"}}
    async with target.open(format=name, **down) as sink:
        sink.learn_schemas(kept)
        await sink.write(commit(1, rows(1, 2)))
        with pytest.raises(SinkError, match="cannot be reached"):
            await sink.write(commit(2, rows(2, 3, name=["c"])))
    assert len(target.read()) == 2


@FULL
async def test_the_first_url_that_answers_is_used(target: RegisteredTopic) -> None:
    urls = ["http://127.0.0.1:1", target.registry.url]
    async with target.open(format="avro", registry={"urls": urls, "retries": 0}) as sink:
        await sink.healthcheck()
        await sink.write(commit(0, rows(0, 1)))
    assert [row["id"] for row in target.avro()] == [1]


async def test_another_server_at_the_url_is_no_registry(target: RegisteredTopic) -> None:
    url = target.registry.url.removesuffix("/apis/ccompat/v7")
    async with target.open(format="avro", registry={"urls": [f"{url}/nothing"]}) as sink:
        with pytest.raises(SinkRefusedError, match="answers with something else"):
            await sink.healthcheck()
