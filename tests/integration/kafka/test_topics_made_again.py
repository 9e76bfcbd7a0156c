"""Topics that were deleted, or deleted and made again, and a topic that forgets offsets.

Kafka gives topics ids. What was delivered into a topic that is gone is gone with it: a pipeline
stops with `topic_recreated` instead of going on in an empty one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd.errors import ConfigError
from tailerd.sinks.kafka.offset_topic import check_offset_topic
from tailerd.sinks.kafka.topics import TopicFacts
from tests.cli.commands import Commands
from tests.integration.daemon.running import daemon
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

pytestmark = pytest.mark.attack


SECONDS = 20
"""Far below the 76 s after which delivery into a topic that is gone was given up before."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


class Followed:
    """A table with a row a commit, and the configuration that delivers it into one topic."""

    def __init__(self, folder: Path, broker: Broker, topics: Topics, **sink: Any) -> None:
        self.broker, self.topics = broker, topics
        self.topic, self.offsets = topics.new_name(), topics.new_name("offsets")
        self._table = TableBuilder(folder / "orders")
        self._table.create()
        self._rows = 0
        self.config = folder / "tailerd.yaml"
        section = {
            "kind": "kafka",
            "bootstrap_servers": broker.plain,
            "topic": self.topic,
            "offsets_topic": self.offsets,
            "create_topic": {"partitions": 1},
            **sink,
        }
        table = {
            "path": str(self._table.folder),
            "from": "snapshot",
            "poll_interval": "200ms",
            "sink": section,
        }
        config = {
            "engine": "arrow",
            "state": str(folder / "state"),
            "http": {"listen": "127.0.0.1:0"},
            "spark": {"master": "local[1]"},
            "tables": {"orders": table},
        }
        self.config.write_text(yaml.safe_dump(config))
        self.commit()

    def commit(self) -> None:
        self._rows += 1
        self._table.append([{"id": self._rows, "name": "a row"}])

    @property
    def all_ids(self) -> list[int]:
        return list(range(1, self._rows + 1))

    def ids(self) -> list[int]:
        if self.topic not in self.topics.names():
            return []
        records = read_topic(self.broker.plain, self.topic)
        return sorted({json.loads(record.value or b"")["id"] for record in records})

    def catches_up(self) -> None:
        eventually(lambda: self.ids() == self.all_ids)

    def stops_because_of_its_topic(self) -> None:
        # The log, not the listener: that one is for people, and bounds how often it is asked.
        text = self.config.parent / "daemon.log"
        eventually(lambda: '"Pipeline failed"' in text.read_text(), SECONDS)
        found = (line for line in text.read_text().splitlines() if line.startswith("{"))
        lines = map(json.loads, found)
        [error] = [line for line in lines if line["event"] == "Pipeline failed"]
        assert error["error_code"] == "topic_recreated"
        assert "offsets reset" in error["error"]


@pytest.fixture
def followed(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_broker: Broker, topics: Topics
) -> Followed:
    return Followed(tmp_path, kafka_broker, topics, **getattr(request, "param", {}))


DELIVERIES = pytest.mark.parametrize(
    "followed",
    [{"delivery": "exactly-once"}, {"delivery": "at-least-once"}],
    ids=["exactly-once", "at-least-once"],
    indirect=True,
)


@pytest.mark.full
@pytest.mark.kafka
@DELIVERIES
def test_a_topic_deleted_while_a_pipeline_lives_stops_it_and_a_reset_delivers_all_again(
    followed: Followed, command: Commands
) -> None:
    with daemon(followed.config) as running:
        followed.catches_up()
        followed.topics.delete(followed.topic)
        followed.commit()
        followed.stops_because_of_its_topic()
        assert followed.topic not in followed.topics.names()
        assert running.wait(20) == 1
    reset = ("offsets", "reset", "orders", "--to", "snapshot", "--config", followed.config)
    assert command(*reset).status == 0
    assert command("run", "--config", followed.config, "--once").status == 0
    assert followed.ids() == followed.all_ids


@pytest.mark.full
@pytest.mark.kafka
def test_a_topic_made_again_beneath_a_pipeline_at_rest_stops_it_before_the_next_commit(
    followed: Followed,
) -> None:
    with daemon(followed.config):
        followed.catches_up()
        followed.topics.delete(followed.topic)
        eventually(lambda: followed.topic not in followed.topics.names())
        followed.topics.create(followed.topic)
        followed.stops_because_of_its_topic()
        assert followed.ids() == []


@pytest.mark.kafka
@DELIVERIES
@pytest.mark.parametrize("is_made_again", [True, False], ids=["made again", "gone"])
def test_a_topic_deleted_while_its_pipeline_is_down_is_not_gone_on_with(
    followed: Followed, is_made_again: bool, command: Commands
) -> None:
    assert command("run", "--config", followed.config, "--once").status == 0
    followed.topics.delete(followed.topic)
    eventually(lambda: followed.topic not in followed.topics.names())
    if is_made_again:
        followed.topics.create(followed.topic)
    followed.commit()
    for _ in range(2):
        refused = command("run", "--config", followed.config, "--once")
        assert refused.status == 1
        assert "error[topic_recreated]" in refused.errors
        assert followed.ids() == []
    reset = ("offsets", "reset", "orders", "--to", "snapshot", "--config", followed.config)
    assert command(*reset).status == 0
    assert command("run", "--config", followed.config, "--once").status == 0
    assert followed.ids() == followed.all_ids


@pytest.mark.kafka
@pytest.mark.parametrize("followed", [{"delivery": "exactly-once"}], ids=str, indirect=True)
@pytest.mark.parametrize("is_made_again", [True, False], ids=["made again", "gone"])
def test_an_offsets_topic_that_was_deleted_is_no_reason_to_begin_again(
    followed: Followed, is_made_again: bool, command: Commands
) -> None:
    assert command("run", "--config", followed.config, "--once").status == 0
    followed.topics.delete(followed.offsets)
    eventually(lambda: followed.offsets not in followed.topics.names())
    if is_made_again:
        followed.topics.create(followed.offsets, config={"cleanup.policy": "compact"})
    refused = command("run", "--config", followed.config, "--once")
    assert refused.status == 1
    assert "error[topic_recreated]" in refused.errors
    assert followed.offsets in refused.errors
    reset = ("offsets", "reset", "orders", "--to", "latest", "--config", followed.config)
    assert command(*reset).status == 0
    followed.commit()
    assert command("run", "--config", followed.config, "--once").status == 0
    assert len(read_topic(followed.broker.plain, followed.topic)) == 2


@pytest.mark.kafka
def test_topics_chosen_by_a_column_are_known_again_too(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    prefix = topics.new_name()
    topic = f"{prefix}-1"
    topics.delete_later(topic)
    followed = Followed(tmp_path, kafka_broker, topics, topic=f"{prefix}-{{column:id}}")
    assert command("run", "--config", followed.config, "--once").status == 0
    topics.delete(topic)
    topics.delete_later(f"{prefix}-2")
    followed.commit()
    refused = command("run", "--config", followed.config, "--once")
    assert "error[topic_recreated]" in refused.errors
    assert topic in refused.errors


@pytest.mark.parametrize(
    ("policy", "is_unlimited", "is_refused"),
    [
        ("compact", False, False),
        ("compact", True, False),
        ("compact,delete", True, False),
        ("compact,delete", False, True),
        ("delete, compact", False, True),
        ("delete", True, True),
        ("delete", False, True),
        ("", False, False),
    ],
)
def test_an_offsets_topic_that_deletes_is_refused_unless_its_retention_is_unlimited(
    policy: str, is_unlimited: bool, is_refused: bool
) -> None:
    facts = TopicFacts(
        name="offsets", partitions=1, replicas=1, cleanup_policy=policy, is_unlimited=is_unlimited
    )
    if is_refused:
        with pytest.raises(ConfigError, match="deletes"):
            check_offset_topic(facts)
    else:
        check_offset_topic(facts)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("retention", "status"),
    [
        ({"retention.ms": "604800000", "retention.bytes": "-1"}, 2),
        ({"retention.ms": "-1", "retention.bytes": "1000000"}, 2),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, 0),
    ],
    ids=["by age", "by size", "unlimited"],
)
def test_an_offsets_topic_with_compact_and_delete_needs_an_unlimited_retention(
    retention: dict[str, str],
    status: int,
    tmp_path: Path,
    kafka_broker: Broker,
    topics: Topics,
    command: Commands,
) -> None:
    followed = Followed(tmp_path, kafka_broker, topics, delivery="exactly-once")
    topics.create(followed.offsets, config={"cleanup.policy": "compact,delete", **retention})
    ran = command("run", "--config", followed.config, "--once")
    assert ran.status == status
    assert ("cleanup.policy=compact,delete" in ran.errors) == bool(status)
    assert followed.ids() == ([] if status else [1])
