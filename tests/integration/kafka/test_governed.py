"""The example of two sinks of one table, on a real broker: nothing masked gets out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Commands
from tests.conftest import ROOT
from tests.integration.daemon.running import delivered_ids
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.kafka

EXAMPLE = ROOT / "config" / "governed.yaml"
FIELDS = [("id", "long"), ("email", "string"), ("amount", "double"), ("note", "string")]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def changed(folder: Path, broker: Broker, topic: str, **orders: Any) -> Path:
    """Write the example with another topic, in a folder of its own."""
    config = yaml.safe_load(EXAMPLE.read_text())
    config["state"] = str(folder / "state")
    table = config["tables"]["orders"]
    table["path"] = str(folder / "orders")
    table["sinks"]["files"]["sink"]["path"] = str(folder / "files")
    kafka = table["sinks"]["kafka"]["sink"]
    kafka |= {"bootstrap_servers": [broker.plain], "topic": topic}
    kafka.pop("create_topic")
    # Of the offsets' records in Kafka, which tests share.
    config["name"] = topic
    table |= orders
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def values(broker: Broker, topic: str) -> list[dict[str, Any]]:
    found = [each.value for each in read_topic(broker.plain, topic)]
    return [json.loads(value) for value in found if value]


def test_the_example_delivers_all_columns_to_files_and_masked_ones_to_kafka(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    topic = topics.create(partitions=4)
    config = changed(tmp_path, kafka_broker, topic)
    ran = command("run", "--config", config, "--once")
    assert ran.status == 0, ran.errors
    assert command("verify", "orders", "--config", config).status == 0
    rows = [value["after"] for value in values(kafka_broker, topic) if value["after"]]
    assert rows
    assert all("status" not in row and float(row["amount"]) > 50 for row in rows)
    assert all(len(row["customer"]) == 32 for row in rows)
    files = "".join(path.read_text() for path in (tmp_path / "files").glob("*.jsonl"))
    assert '"status"' in files


def test_an_update_out_of_the_condition_is_a_delete_in_kafka(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, command: Commands
) -> None:
    table = TableBuilder(tmp_path / "orders", fields=FIELDS, start_ms=None)
    first = {"id": 1, "email": "ada@example.org", "amount": 80.0, "note": "a"}
    second = {"id": 2, "email": "bola@example.org", "amount": 90.0, "note": "b"}
    table.append([first, second])
    topic = topics.create(partitions=1)
    sink = {"kind": "kafka", "key": ["id"], "format": "debezium", "delivery": "exactly-once"}
    sink |= {"bootstrap_servers": [kafka_broker.plain], "topic": topic}
    kafka = {
        "columns": {"exclude": ["note"]},
        "where": "amount > 50",
        "mask": {"email": "hash"},
        "mask_key": "deep-thought-42",
        "sink": sink,
    }
    files = {"sink": {"kind": "file", "path": str(tmp_path / "files")}}
    sinks = {"files": files, "kafka": kafka}
    config = changed(tmp_path, kafka_broker, topic, sinks=sinks, identity=["id"])
    assert command("run", "--config", config, "--once").status == 0
    [add] = table.state(table.version).adds.values()
    table.commit(table.remove({"add": add}), table.data_file([{**first, "amount": 10.0}, second]))
    assert command("run", "--config", config, "--once").status == 0
    ops = [
        (value["op"], (value["before"] or value["after"])["id"])
        for value in values(kafka_broker, topic)
    ]
    assert ops == [("r", 1), ("r", 2), ("d", 1)]
    assert delivered_ids(tmp_path / "files") == [1, 2, 1, 1]
    seen = json.dumps(
        [[str(each.key), str(each.value)] for each in read_topic(kafka_broker.plain, topic)]
    )
    assert "example.org" not in seen
    assert "note" not in seen
    assert command("verify", "orders", "--config", config).status == 0
