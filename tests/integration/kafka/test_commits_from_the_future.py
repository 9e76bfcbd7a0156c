"""A commit dated hours ahead: brokers refuse its records, and nothing before it has to wait."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from tailerd.cli import run
from tailerd.sinks.kafka import topics as topics_module
from tailerd.sinks.kafka.acknowledgements import Acknowledgements
from tailerd.sinks.kafka.topics import TopicFacts, _with_settings
from tests.integration.daemon.running import daemon, read_log, write_config
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

pytestmark = pytest.mark.attack


HOUR_MS = 3_600_000
Captured = pytest.CaptureFixture[str]


def with_a_future_commit(tmp_path: Path) -> TableBuilder:
    """Versions 1 to 3 of now, 4 three hours ahead, and one of a later time behind it."""
    builder = TableBuilder(tmp_path / "t", start_ms=None)
    builder.create()
    now = time.time_ns() // 1_000_000
    for version in range(1, 6):
        ahead = 3 * HOUR_MS + version if version >= 4 else version - 100
        builder.append([{"id": version}], mtime_ms=now + ahead)
    return builder


def configured(
    tmp_path: Path, broker: Broker, topic: str, attempts: int | None = None, **sink: Any
) -> Path:
    section: dict[str, Any] = {"kind": "kafka", "bootstrap_servers": broker.plain, "topic": topic}
    section |= sink
    if sink.get("delivery") == "exactly-once":
        # Other pipelines of this name may have used the broker before.
        section |= {"offsets_topic": f"{topic}-offsets", "transactional_id": topic}
    table: dict[str, object] = {
        "path": str(tmp_path / "t"),
        "from": "0",
        "sink": section,
        "poll_interval": "50ms",
        "max_attempts": attempts,
    }
    return write_config(tmp_path, orders=table)


def tailerd(*arguments: object) -> int:
    return run([str(each) for each in arguments])


def ids(broker: Broker, topic: str) -> list[int]:
    return [json.loads(record.value or b"{}")["id"] for record in read_topic(broker.plain, topic)]


def is_prefix_delivered(broker: Broker, topic: str, guarantee: str) -> bool:
    found = ids(broker, topic)
    return (found if guarantee == "exactly-once" else sorted(set(found))) == [1, 2, 3]


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("engine", "knows"),
    [
        ("arrow", True),
        ("arrow", False),
        # They cannot be hidden from Spark's processes here.
        pytest.param("spark", True, marks=pytest.mark.spark),
    ],
    indirect=["engine"],
    ids=["arrow", "arrow-settings-hidden", "spark"],
)
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_what_lies_before_it_is_delivered_and_the_error_names_the_one_remedy(
    kafka_broker: Broker,
    topics: Topics,
    tmp_path: Path,
    engine: str,
    guarantee: str,
    knows: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    if not knows:
        # As for a user without the right to see settings: only the broker's answer tells.
        monkeypatch.setattr(topics_module, "_settings", lambda *_: {})
    with_a_future_commit(tmp_path)
    topic = topics.create()
    topics.delete_later(f"{topic}-offsets")
    config = configured(tmp_path, kafka_broker, topic, attempts=2, delivery=guarantee)
    once = ("run", "--config", config, "--once", "--engine", engine)
    assert tailerd(*once) == 1
    reported = capsys.readouterr().err
    assert "commit_ahead" in reported
    assert "Version 4 is dated" in reported or "Version 5 is dated" in reported
    assert "message.timestamp.after.max.ms" in reported
    assert "timestamp: delivery" in reported
    for wrong in ("before.max.ms", "set `key`", "transactional_id"):
        assert wrong not in reported
    assert is_prefix_delivered(kafka_broker, topic, guarantee)
    assert tailerd("offsets", "--config", config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["offset"]["version"] == 4
    configured(tmp_path, kafka_broker, topic, delivery=guarantee, timestamp="delivery")
    assert tailerd(*once) == 0
    assert ids(kafka_broker, topic)[-2:] == [4, 5]


@pytest.mark.full
@pytest.mark.kafka
def test_a_producer_that_only_says_it_cannot_continue_is_told_by_its_reason(
    kafka_broker: Broker,
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    """The next call of the producer may fail before the refused record is reported."""
    report = Acknowledgements.done

    def report_state(self: Acknowledgements, size_bytes: int, error: Exception | None) -> None:
        if error is not None:
            error = KafkaError("Cannot perform send: an earlier request failed.", error)
        report(self, size_bytes, error)

    monkeypatch.setattr(Acknowledgements, "done", report_state)
    monkeypatch.setattr(topics_module, "_settings", lambda *_: {})
    with_a_future_commit(tmp_path)
    topic = topics.create()
    topics.delete_later(f"{topic}-offsets")
    config = configured(tmp_path, kafka_broker, topic, attempts=2, delivery="exactly-once")
    assert tailerd("run", "--config", config, "--once") == 1
    assert "error[commit_ahead]" in capsys.readouterr().err
    assert is_prefix_delivered(kafka_broker, topic, "exactly-once")


@pytest.mark.full
@pytest.mark.kafka
def test_a_running_daemon_goes_on_by_itself_once_the_topic_takes_it(
    kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    with_a_future_commit(tmp_path)
    topic = topics.create()
    topics.delete_later(f"{topic}-offsets")
    config = configured(tmp_path, kafka_broker, topic, delivery="exactly-once")
    with daemon(config):
        eventually(lambda: "commit_ahead" in read_log(config))
        eventually(lambda: ids(kafka_broker, topic) == [1, 2, 3])
        admin = KafkaAdminClient(bootstrap_servers=kafka_broker.plain)
        settings = {"message.timestamp.after.max.ms": str(24 * HOUR_MS)}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)])
        admin.close()
        eventually(lambda: ids(kafka_broker, topic) == [1, 2, 3, 4, 5])


@pytest.mark.kafka
def test_markers_of_commits_take_the_time_of_the_delivery_too(
    kafka_broker: Broker, topics: Topics, tmp_path: Path
) -> None:
    with_a_future_commit(tmp_path)
    topic, markers = topics.create(), topics.create()
    fields: dict[str, Any] = {"timestamp": "delivery", "transaction_topic": markers}
    config = configured(tmp_path, kafka_broker, topic, **fields)
    assert tailerd("run", "--config", config, "--once") == 0
    assert ids(kafka_broker, topic) == [1, 2, 3, 4, 5]
    values = [json.loads(each.value or b"{}") for each in read_topic(kafka_broker.plain, markers)]
    assert values[-1]["ts_ms"] > time.time_ns() // 1_000_000 + 2 * HOUR_MS


@pytest.mark.parametrize(
    ("settings", "ahead_ms"),
    [
        ({"message.timestamp.after.max.ms": "3600000"}, HOUR_MS),
        ({"message.timestamp.difference.max.ms": "60000"}, 60_000),
        (
            {
                "message.timestamp.after.max.ms": str(2**63 - 1),
                "message.timestamp.difference.max.ms": "60000",
            },
            60_000,
        ),
        ({"message.timestamp.after.max.ms": "5", "message.timestamp.type": "LogAppendTime"}, None),
        ({}, None),
    ],
    ids=["new", "old-brokers", "both", "brokers-time", "hidden"],
)
def test_the_topic_says_how_far_ahead_it_takes_records(
    settings: dict[str, str], ahead_ms: int | None
) -> None:
    facts = _with_settings(TopicFacts(name="t", partitions=1, replicas=1), settings)
    assert facts.ahead_ms == ahead_ms
