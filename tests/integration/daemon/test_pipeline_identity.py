"""One name, one offset, wrongly shared; and engines, which go on from each other's offsets.

A pipeline is a daemon's name, a table's name, and the location of its sink. What one pipeline saved
no other goes on from without being told to.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import SavedOffset
from tests.cli.commands import Commands
from tests.integration.daemon.running import delivered_ids
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.attack


TEXTS = st.text("abcAB01._-", min_size=1, max_size=20)
IDENTITIES = st.builds(
    PipelineIdentity,
    daemon=TEXTS,
    table=TEXTS,
    sink=st.just("kafka"),
    cluster=TEXTS,
    location=st.text("ab/{}:._-", min_size=1, max_size=300),
)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def filled(folder: Path, *commits: list[int]) -> TableBuilder:
    table = TableBuilder(folder)
    table.create()
    for ids in commits:
        append(table, *ids)
    return table


def append(table: TableBuilder, *ids: int) -> None:
    table.append([{"id": each, "name": f"row {each}"} for each in ids])


def configured(
    folder: Path, table: TableBuilder, sink: dict[str, Any], engine: str = "arrow", **fields: Any
) -> Path:
    """Write a configuration with a state of its own, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    path = folder / "tailerd.yaml"
    config = {
        "engine": engine,
        "state": str(folder / "state"),
        "http": {"listen": None},
        "spark": {"master": "local[1]"},
        **fields,
        "tables": {"orders": {"path": str(table.folder), "from": "snapshot", "sink": sink}},
    }
    path.write_text(yaml.safe_dump(config))
    return path


def into(broker: Broker, topics: Topics, topic: str, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "kafka",
        "bootstrap_servers": broker.plain,
        "topic": topic,
        "delivery": "exactly-once",
        **fields,
    }


def ids_in(broker: Broker, topic: str) -> list[int]:
    records = read_topic(broker.plain, topic)
    return sorted(json.loads(record.value or b"")["id"] for record in records)


@pytest.mark.full
@pytest.mark.kafka
def test_two_configurations_over_one_table_into_two_topics_both_get_the_whole_table(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    table = filled(tmp_path / "orders", [1, 2], [3])
    offsets = topics.new_name("offsets")
    locations = [topics.create(), topics.create()]
    configs = [
        configured(
            tmp_path / location, table, into(kafka_broker, topics, location, offsets_topic=offsets)
        )
        for location in locations
    ]
    for config in configs:
        assert command("run", "--config", config, "--once").status == 0
    append(table, 4)
    for config in reversed(configs):
        assert command("run", "--config", config, "--once").status == 0
    assert [ids_in(kafka_broker, location) for location in locations] == [[1, 2, 3, 4]] * 2


@pytest.mark.kafka
def test_different_tables_of_one_name_are_different_pipelines(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    offsets = topics.new_name("offsets")
    for number, ids in enumerate([[1, 2], [7]]):
        table = filled(tmp_path / f"table{number}", ids)
        topic = topics.create()
        sink = into(kafka_broker, topics, topic, offsets_topic=offsets)
        config = configured(tmp_path / f"config{number}", table, sink)
        assert command("run", "--config", config, "--once").errors.count("error") == 0
        assert ids_in(kafka_broker, topic) == ids


@pytest.mark.kafka
def test_daemons_of_different_names_deliver_one_table_into_one_topic_each_for_itself(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    table, topic = filled(tmp_path / "orders", [1]), topics.create()
    sink = into(kafka_broker, topics, topic, offsets_topic=topics.new_name("offsets"))
    for name in ("first", "second"):
        config = configured(tmp_path / name, table, sink, name=name)
        assert command("run", "--config", config, "--once").status == 0
    assert ids_in(kafka_broker, topic) == [1, 1]


@pytest.mark.kafka
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_changed_topic_is_refused_until_it_is_rebound_and_the_offset_is_kept(
    delivery: str, tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    table = filled(tmp_path / "orders", [1, 2])
    first, second = topics.create(), topics.create()
    more = {"offsets_topic": topics.new_name("offsets"), "delivery": delivery}
    home = tmp_path / "home"
    config = configured(home, table, into(kafka_broker, topics, first, **more))
    assert command("run", "--config", config, "--once").status == 0
    config = configured(home, table, into(kafka_broker, topics, second, **more))
    append(table, 3)

    refused = command("run", "--config", config, "--once")
    assert refused.status == 1
    assert "error[pipeline_rebound]" in refused.errors
    assert first in refused.errors
    assert second in refused.errors
    assert "tailerd offsets rebind orders" in refused.errors
    assert ids_in(kafka_broker, second) == []

    assert second in command("offsets", "rebind", "orders", "--config", config).output
    for _ in range(2):
        assert command("run", "--config", config, "--once").status == 0
    assert (ids_in(kafka_broker, first), ids_in(kafka_broker, second)) == ([1, 2], [3])


def test_a_changed_folder_is_refused_until_it_is_rebound_and_a_link_to_it_is_no_change(
    tmp_path: Path, command: Commands
) -> None:
    table = filled(tmp_path / "orders", [1, 2])
    home, old, new = tmp_path / "home", tmp_path / "old", tmp_path / "new"
    config = configured(home, table, {"kind": "file", "path": str(old)})
    assert command("run", "--config", config, "--once").status == 0
    (tmp_path / "link").symlink_to(old)
    append(table, 3)
    config = configured(home, table, {"kind": "file", "path": str(tmp_path / "link")})
    assert command("run", "--config", config, "--once").status == 0

    append(table, 4)
    config = configured(home, table, {"kind": "file", "path": str(new)})
    refused = command("run", "--config", config, "--once")
    assert refused.status == 1
    assert "error[pipeline_rebound]" in refused.errors
    assert str(old) in refused.errors
    assert str(new) in refused.errors
    assert command("validate", config).status == 1
    assert command("offsets", "rebind", "orders", "--config", config).status == 0
    assert command("run", "--config", config, "--once").status == 0
    assert (delivered_ids(old), delivered_ids(new)) == ([1, 2, 3], [4])


def test_a_reset_begins_at_a_new_location_without_rebinding(
    tmp_path: Path, command: Commands
) -> None:
    table, home = filled(tmp_path / "orders", [1, 2]), tmp_path / "home"
    config = configured(home, table, {"kind": "file", "path": str(tmp_path / "old")})
    assert command("run", "--config", config, "--once").status == 0
    config = configured(home, table, {"kind": "file", "path": str(tmp_path / "new")})
    reset = command("offsets", "reset", "orders", "--to", "snapshot", "--config", config)
    assert reset.status == 0
    assert command("run", "--config", config, "--once").status == 0
    assert delivered_ids(tmp_path / "new") == [1, 2]


def test_rebinding_what_no_state_knows_is_refused(tmp_path: Path, command: Commands) -> None:
    table = filled(tmp_path / "orders", [1])
    config = configured(tmp_path / "home", table, {"kind": "console"})
    refused = command("offsets", "rebind", "orders", "--config", config)
    assert refused.status == 1
    assert "error[offset]" in refused.errors


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.usefixtures("kept_spark")
def test_the_other_engine_goes_on_where_the_table_was(tmp_path: Path, command: Commands) -> None:
    table, home, out = filled(tmp_path / "orders", [1, 2]), tmp_path / "home", tmp_path / "out"
    config = configured(home, table, {"kind": "file", "path": str(out)})
    for number, engine in enumerate(("arrow", "spark", "arrow"), start=3):
        ran = command("run", "--config", config, "--once", "--engine", engine)
        assert ran.status == 0, ran.errors
        assert sorted(delivered_ids(out)) == list(range(1, number))
        [reported] = command("offsets", "--config", config, "--json").rows
        assert reported["offset"]["version"] == number - 1
        append(table, number)
    assert command("verify", "orders", "--config", config).status == 0


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.usefixtures("kept_spark")
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_the_other_engine_goes_on_in_kafka_too_and_a_topic_made_again_is_refused(
    delivery: str, tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    table, topic = filled(tmp_path / "orders", [1, 2]), topics.create()
    more = {"offsets_topic": topics.new_name("offsets"), "delivery": delivery}
    config = configured(tmp_path / "home", table, into(kafka_broker, topics, topic, **more))
    for number, engine in enumerate(("spark", "arrow", "spark"), start=3):
        ran = command("run", "--config", config, "--once", "--engine", engine)
        assert ran.status == 0, ran.errors
        assert ids_in(kafka_broker, topic) == list(range(1, number))
        append(table, number)

    topics.delete(topic)
    topics.create(topic)
    refused = command("run", "--config", config, "--once", "--engine", "spark")
    assert refused.status == 1
    assert "topic_recreated" in refused.errors
    assert ids_in(kafka_broker, topic) == []
    reset = ("offsets", "reset", "orders", "--to", "snapshot", "--config", config)
    assert command(*reset, "--engine", "spark").status == 0
    assert command("run", "--config", config, "--once", "--engine", "spark").status == 0
    assert ids_in(kafka_broker, topic) == [1, 2, 3, 4, 5]


def test_each_start_raises_the_epoch_of_the_saved_offset(tmp_path: Path, command: Commands) -> None:
    table = filled(tmp_path / "orders", [1])
    config = configured(tmp_path, table, {"kind": "file", "path": str(tmp_path / "out")})
    seen = []
    for _ in range(3):
        assert command("run", "--config", config, "--once").status == 0
        saved = json.loads((tmp_path / "state/offsets/orders.json").read_text())
        seen.append(saved["epoch"])
        assert saved["format"] == 1
        assert saved["pipeline"]["location"] == str(tmp_path / "out")
    assert seen == [1, 2, 3]


@given(first=IDENTITIES, second=IDENTITIES)
def test_different_pipelines_have_different_keys_and_transactional_ids(
    first: PipelineIdentity, second: PipelineIdentity
) -> None:
    assert (first.key == second.key) == (first == second)
    assert (first.transactional_id == second.transactional_id) == (first == second)
    assert len(first.transactional_id) <= 200
    assert first.transactional_id.startswith(f"tailerd-{first.daemon}-")


@pytest.mark.full
@given(identity=IDENTITIES, mark=st.text(max_size=1024), epoch=st.integers(0, 2**53))
def test_a_saved_offset_is_read_back_whole_with_its_mark(
    identity: PipelineIdentity, mark: str, epoch: int
) -> None:
    saved = SavedOffset(
        offset=Offset(table_id="t", version=Version(4), mark=mark),
        changes=ChangeMode.AUTO,
        schema_id="s",
        identity=identity,
        epoch=epoch,
        topics={"orders": "an id"},
    )
    assert SavedOffset.from_json(saved.to_json(), location="The record", fix="") == saved
    assert replace(saved.offset, mark="").order == saved.offset.order
