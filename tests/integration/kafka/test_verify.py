"""`tailerd run` into a topic, then `tailerd verify`: the operator's own proof, on a real broker."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.commands import Commands
from tests.integration.daemon.test_verify import lively
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.property.key_histories import KeyHistory, Row, applied, rows_that_are_there

pytestmark = pytest.mark.kafka


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def configured(
    folder: Path,
    broker: Broker,
    topic: str,
    start: str = "0",
    *,
    fields: Mapping[str, Any] | None = None,
    **sink: Any,
) -> Path:
    kafka = {"kind": "kafka", "bootstrap_servers": [broker.plain], "topic": topic, **sink}
    # Each topic has a pipeline of its own: offsets of all share one topic.
    name = topic.partition("{")[0]
    table = {"path": f"{folder}/orders", "from": start, "sink": kafka, **(fields or {})}
    config = {
        "engine": "arrow",
        "state": f"{folder}/state",
        "http": {"listen": None},
        "tables": {name: table},
    }
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize(
    "shape", [{"format": "json"}, {"format": "debezium", "schemas": True}], ids=str
)
@pytest.mark.parametrize("start", ["snapshot", "0", "2"])
def test_a_topic_replays_to_the_table(
    start: str,
    shape: dict[str, Any],
    delivery: str,
    tmp_path: Path,
    kafka_broker: Broker,
    topics: Topics,
    command: Commands,
) -> None:
    table = lively(tmp_path)
    topic = topics.create(partitions=3)
    config = configured(
        tmp_path, kafka_broker, topic, start, key=["id"], delivery=delivery, **shape
    )
    assert command("run", "--config", config, "--once").status == 0
    table.append([{"id": 102, "name": "later", "tags": []}])
    ran = command("verify", topic, "--config", config, "--json")
    assert (ran.status, ran.errors) == (0, "")
    [verdict] = ran.rows
    assert (verdict["is_equal"], verdict["version"], verdict["rows"]) == (True, 5, 51)
    assert command("run", "--config", config, "--once").status == 0
    [verdict] = command("verify", topic, "--config", config, "--json").rows
    assert (verdict["is_equal"], verdict["version"], verdict["rows"]) == (True, 6, 52)


@pytest.mark.parametrize("style", ["json", "debezium"])
def test_rows_that_move_to_other_files_are_what_their_keys_have_last(
    style: str, tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    history = KeyHistory(tmp_path / "orders", random.Random(5))
    for _ in range(10):
        history.commit()
    topic = topics.create(partitions=3)
    config = configured(tmp_path, kafka_broker, topic, key=["id"], format=style)
    assert command("run", "--config", config, "--once").status == 0
    state: dict[bytes, Row] = {}
    applied(
        state, ((each.key or b"", each.value) for each in read_topic(kafka_broker.plain, topic))
    )
    assert rows_that_are_there(state) == history.state


@pytest.mark.parametrize("style", ["json", "debezium"])
def test_a_topic_with_chosen_columns_and_masks_equals_the_view(
    style: str, tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    lively(tmp_path)
    topic = topics.create(partitions=3)
    fields = {
        "columns": ["name", "tags"],
        "rename": {"id": "key", "name": "label"},
        "where": "id < 40 or id = 100",
        "mask": {"name": "hash", "id": "hash"},
        "mask_key": "deep-thought-42",
        "unchanged": "drop",
    }
    config = configured(tmp_path, kafka_broker, topic, fields=fields, key=["key"], format=style)
    assert command("run", "--config", config, "--once").status == 0
    [verdict] = command("verify", topic, "--config", config, "--json").rows
    assert (verdict["is_equal"], verdict["rows"]) == (True, 40)


def test_topics_that_a_column_chooses_are_read_together(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    lively(tmp_path)
    prefix = topics.new_name()
    config = configured(
        tmp_path,
        kafka_broker,
        f"{prefix}-{{column:id}}",
        "3",
        create_topic={"partitions": 1},
    )
    name = f"{prefix}-"
    assert command("run", "--config", config, "--once").status == 0
    for each in topics.names():
        if each.startswith(prefix):
            topics.delete_later(each)
    [verdict] = command("verify", name, "--config", config, "--json").rows
    assert verdict["is_equal"]


def test_a_record_of_somebody_else_and_one_that_is_there_twice_are_found(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    lively(tmp_path)
    topic = topics.create()
    config = configured(tmp_path, kafka_broker, topic, "snapshot")
    assert command("run", "--config", config, "--once").status == 0
    producer = Producer({"bootstrap.servers": kafka_broker.plain})
    again = (
        b'{"id":101,"name":"x","tags":null,"_change_type":"insert","_commit_version":5,'
        b'"_commit_timestamp":"2024-01-01T00:00:00.000000Z"}'
    )
    producer.produce(topic, again)
    assert producer.flush(20) == 0
    ran = command("verify", topic, "--config", config)
    assert ran.status == 1
    assert '"name":"x"' in ran.output
    producer.produce(topic, b"hello")
    assert producer.flush(20) == 0
    ran = command("verify", topic, "--config", config)
    assert (ran.status, "error[sink]" in ran.errors, "hello" in ran.errors) == (1, True, True)


def test_a_topic_without_its_first_records_proves_nothing_and_says_so(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    lively(tmp_path)
    topic = topics.create()
    config = configured(tmp_path, kafka_broker, topic, "snapshot")
    assert command("run", "--config", config, "--once").status == 0
    admin = AdminClient({"bootstrap.servers": kafka_broker.plain})
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    deleted.result(20)
    ran = command("verify", topic, "--config", config)
    assert ran.status == 1
    assert "begins at offset 5" in ran.errors


@pytest.mark.parametrize("config", [{}, {"cleanup.policy": "compact"}, {"retention.ms": "-1"}])
def test_a_topic_that_would_delete_old_rows_at_once_is_refused_and_others_are_not(
    config: dict[str, str],
    tmp_path: Path,
    kafka_broker: Broker,
    topics: Topics,
    command: Commands,
) -> None:
    lively(tmp_path)
    topic = topics.create(config={"retention.ms": "604800000", **config})
    path = configured(tmp_path, kafka_broker, topic, key=["id"])
    ran = command("run", "--config", path, "--once")
    if config:
        assert ran.status == 0
        return
    assert ran.status == 1
    assert "deletes records that are 7 days old" in ran.errors
    assert "timestamp: delivery" in ran.errors
    assert sum(topics.end_offsets(topic).values()) == 0
    path = configured(tmp_path, kafka_broker, topic, key=["id"], timestamp="delivery")
    assert command("run", "--config", path, "--once").status == 0
    assert command("verify", topic, "--config", path).status == 0


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_two_topics_of_one_table_are_two_pipelines(
    delivery: str, tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    table = lively(tmp_path)
    whole, some = topics.create(partitions=2), topics.create(partitions=2)
    config = configured(tmp_path, kafka_broker, whole, delivery=delivery, format="debezium")
    content = yaml.safe_load(config.read_text())
    section = content["tables"].pop(whole)
    sink = section.pop("sink")
    section["sinks"] = {
        "whole": {"sink": {**sink, "topic": whole}},
        "some": {"where": "id < 40", "sink": {**sink, "topic": some}},
    }
    content["tables"][whole] = section
    config.write_text(yaml.safe_dump(content))
    assert command("run", "--config", config, "--once").status == 0
    table.append([{"id": 7, "name": "later", "tags": []}])
    assert command("run", "--config", config, "--once").status == 0
    ran = command("verify", whole, "--config", config, "--json")
    assert (ran.status, ran.errors) == (0, "")
    assert {(each["table"], each["is_equal"]) for each in ran.rows} == {
        (f"{whole}/some", True),
        (f"{whole}/whole", True),
    }
    for topic in (whole, some):
        values = [each.value for each in read_topic(kafka_broker.plain, topic)]
        assert {json.loads(value)["source"]["table"] for value in values if value} == {whole}
