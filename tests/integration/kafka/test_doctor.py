"""`tailerd doctor` and a real broker: whether topics could be made, without making any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tailerd.cli import run
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.kafka

Captured = pytest.CaptureFixture[str]


def configuration(table: Path, broker: Broker, topic: str, replicas: int) -> Path:
    sink = {
        "kind": "kafka",
        "bootstrap_servers": [broker.plain],
        "topic": topic,
        "key": ["id"],
        "create_topic": {"partitions": 1, "replication_factor": replicas},
    }
    content = {
        "engine": "arrow",
        "state": str(table.parent / "state"),
        "http": {"listen": "127.0.0.1:0"},
        "tables": {"orders": {"path": str(table), "sink": sink}},
    }
    path = table.parent / "t.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def problems(path: Path, captured: Captured) -> list[dict[str, object]]:
    captured.readouterr()
    run(["doctor", str(path), "--json"])
    found = [json.loads(line) for line in captured.readouterr().out.splitlines()]
    return [each for each in found if each["outcome"] == "problem"]


def test_more_copies_than_brokers_are_found_and_no_topic_is_made(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    TableBuilder(tmp_path / "t").create()
    topic = topics.new_name()
    [problem] = problems(configuration(tmp_path / "t", kafka_broker, topic, 3), capsys)
    assert (problem["check"], problem["code"]) == ("table orders", "sink_refused")
    assert "create_topic.replication_factor" in str(problem["remedy"])
    assert problems(configuration(tmp_path / "t", kafka_broker, topic, 1), capsys) == []
    # Had the look before made it, there would be nothing left to refuse.
    assert problems(configuration(tmp_path / "t", kafka_broker, topic, 3), capsys) == [problem]
