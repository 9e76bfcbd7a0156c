"""A daemon that is run once, on both engines: the same values in the registry's formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tailerd.cli import run
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.schema_registry import SchemaRegistry
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka]
ROOT = Path(__file__).resolve().parents[3]


def run_once(folder: Path, engine: str, sink: dict[str, Any]) -> None:
    """Deliver a table of two commits, of which the second has a further column."""
    builder = TableBuilder(folder / "orders")
    builder.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    builder.change_metadata(fields=[("id", "long"), ("name", "string"), ("more", "double")])
    builder.append([{"id": 3, "name": "c", "more": 1.5}])
    deliver(builder, folder, engine, sink)


def deliver(builder: TableBuilder, folder: Path, engine: str, sink: dict[str, Any]) -> None:
    """Run until what the table has is delivered; a later call goes on from there."""
    settings = {
        "engine": engine,
        "state": str(folder / "state"),
        "spark": {"master": "local[2]"},
        "http": {"listen": "127.0.0.1:0"},
        "tables": {"orders": {"path": str(builder.folder), "from": "0", "sink": sink}},
    }
    config = folder / "tailerd.yaml"
    config.write_text(yaml.safe_dump(settings))
    assert run(["run", "--config", str(config), "--once"]) == 0


def tailerd(*arguments: str) -> str:
    """Run a command that ends well; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tailerd", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def section(broker: Broker, topic: str, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "kafka",
        "bootstrap_servers": broker.plain,
        "topic": topic,
        "key": ["id"],
        "create_topic": {"partitions": 2},
        **fields,
    }


def test_rows_before_and_after_a_new_column_are_read_by_confluents_deserializer(
    engine: str,
    kafka_broker: Broker,
    schema_registry: SchemaRegistry,
    topics: Topics,
    tmp_path: Path,
) -> None:
    topic = topics.new_name()
    registry = {"urls": [schema_registry.url]}
    run_once(
        tmp_path, engine, section(kafka_broker, topic, format="avro", schema_registry=registry)
    )
    client = SchemaRegistryClient({"url": schema_registry.url})
    read, where = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
    found = [read(record.value, where) for record in read_topic(kafka_broker.plain, topic)]
    assert sorted((row["id"], row["name"], row.get("more", "none")) for row in found) == [
        (1, "a", "none"),
        (2, "b", "none"),
        (3, "c", 1.5),
    ]
    assert len(client.get_versions(f"{topic}-value")) == 2


def test_rows_of_a_forbidden_schema_become_dead_letters_with_their_bytes(
    engine: str,
    kafka_broker: Broker,
    schema_registry: SchemaRegistry,
    topics: Topics,
    tmp_path: Path,
) -> None:
    topic, letters = topics.new_name(), topics.new_name("letters")
    registry = {"urls": [schema_registry.url], "on_incompatible_schema": "dead_letter"}
    fields: dict[str, Any] = {
        "format": "avro",
        "delivery": "exactly-once",
        "schema_registry": registry,
        "dead_letter_topic": letters,
    }
    sink = section(kafka_broker, topic, **fields)
    client = SchemaRegistryClient({"url": schema_registry.url})
    builder = TableBuilder(tmp_path / "orders")
    builder.append([{"id": 1, "name": "a"}])
    deliver(builder, tmp_path, engine, sink)
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    builder.change_metadata(fields=[("id", "long"), ("name", "long")])
    builder.append([{"id": 2, "name": 5}, {"id": 3, "name": 6}])
    builder.change_metadata(fields=[("id", "long"), ("name", "string")])
    builder.append([{"id": 4, "name": "d"}])
    deliver(builder, tmp_path, engine, sink)

    def names(topic: str) -> list[Any]:
        read, where = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
        values = [read(record.value, where) for record in read_topic(kafka_broker.plain, topic)]
        return sorted((row["id"], row["name"], row["_commit_version"]) for row in values)

    assert names(topic) == [(1, "a", 0), (4, "d", 4)]
    assert names(letters) == [(2, 5, 2), (3, 6, 2)]
    for record in read_topic(kafka_broker.plain, letters):
        headers = reported(record)
        assert headers["tailerd.reason"] == b"incompatible_schema"
        assert headers["tailerd.topic"] == topic.encode()


def test_events_have_ids_and_changes_of_their_own(
    engine: str, kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new_name()
    run_once(tmp_path, engine, section(kafka_broker, topic, format="cloudevents"))
    records = read_topic(kafka_broker.plain, topic)
    assert sorted(json.loads(record.value or b"")["id"] for record in records) == [1, 2, 3]
    headers = [reported(record) for record in records]
    assert len({each["ce_id"] for each in headers}) == 3
    assert {each["ce_source"] for each in headers} == {b"/tailerd/orders"}
    assert {each["ce_iotailerdchange"] for each in headers} == {b"insert"}


def test_the_example_runs_as_it_is_and_what_it_delivered_is_verified(
    kafka_broker: Broker, schema_registry: SchemaRegistry, topics: Topics, tmp_path: Path
) -> None:
    topic, text = topics.new_name(), (ROOT / "config/kafka-avro.yaml").read_text()
    for there, here in (
        ("127.0.0.1:9092", kafka_broker.plain),
        ("http://127.0.0.1:8081/apis/ccompat/v7", schema_registry.url),
        ("topic: orders.avro", f"topic: {topic}"),
        ("quickstart/", f"{tmp_path}/"),
    ):
        assert there in text
        text = text.replace(there, here)
    config = tmp_path / "kafka-avro.yaml"
    config.write_text(text)
    tailerd("run", "--config", str(config), "--once")
    tailerd("validate", str(config))
    assert "equal" in tailerd("verify", "orders", "--config", str(config))
    client = SchemaRegistryClient({"url": schema_registry.url})
    read, where = AvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
    values = [record.value for record in read_topic(kafka_broker.plain, topic)]
    found = [read(value, where) for value in values if value is not None]
    assert {each["source"]["table"] for each in found} == {"orders"}


@pytest.mark.full
@pytest.mark.parametrize(
    "fields",
    [
        {"format": "avro"},
        {"format": "protobuf"},
        {"format": "protobuf", "envelope": "debezium", "delivery": "exactly-once"},
        {"format": "json_schema"},
        {"format": "cloudevents", "cloudevents": {"data": "avro", "mode": "structured"}},
    ],
    ids=["avro", "protobuf", "protobuf_envelope", "json_schema", "cloudevents"],
)
def test_what_was_delivered_is_verified_against_the_table(
    fields: dict[str, Any],
    kafka_broker: Broker,
    schema_registry: SchemaRegistry,
    topics: Topics,
    tmp_path: Path,
) -> None:
    registry = {"urls": [schema_registry.url]}
    sink = section(kafka_broker, topics.new_name(), schema_registry=registry, **fields)
    config = str(tmp_path / "tailerd.yaml")
    run_once(tmp_path, "arrow", sink)
    tailerd("validate", config)
    assert "equal" in tailerd("verify", "orders", "--config", config)


def reported(record: Record) -> dict[str, bytes | None]:
    return dict(record.headers)
