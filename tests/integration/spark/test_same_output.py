"""Tables on Spark get what tables on the Arrow engine get, byte for byte, and stop alone."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Commands, Ran
from tests.kafka.broker import Broker
from tests.kafka.reader import Record, read_topic
from tests.kafka.topics import Topics
from tests.property.key_histories import KeyHistory
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("kept_spark")]

ENGINES = ("arrow", "spark")
Tables = dict[str, dict[str, Any]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def run_on(command: Commands, engine: str, folder: Path, tables: Tables, **options: Any) -> Ran:
    """Run tables to their heads; sinks of files without a path get one below the folder."""
    folder.mkdir(exist_ok=True)
    with_sinks = {
        name: {
            "max_attempts": 1,
            **table,
            "sink": _sink(folder / "out" / name, table.get("sink", {})),
        }
        for name, table in tables.items()
    }
    settings = {"engine": engine, "state": str(folder / "state"), "http": {"listen": None}}
    config = folder / "tailerd.yaml"
    config.write_text(yaml.safe_dump({**settings, **options, "tables": with_sinks}))
    return command("run", "--config", config, "--once")


def _sink(out: Path, section: dict[str, Any]) -> dict[str, Any]:
    return section if "kind" in section else {"kind": "file", "path": str(out), **section}


def filled(folder: Path, commits: int = 3) -> TableBuilder:
    table = TableBuilder(folder, start_ms=None)
    for version in range(commits):
        table.append([{"id": version * 10 + n, "name": "x" * 500} for n in range(4)])
    return table


def files(folder: Path, name: str) -> dict[str, bytes]:
    """What readers of a table's folder find."""
    return {path.name: path.read_bytes() for path in (folder / "out" / name).glob("[!.]*.*")}


# Files


def many_tables(folder: Path) -> Tables:
    """Tables that differ in where they begin, in their batches, and in how they are written."""
    sinks: list[dict[str, Any]] = [{}, {"format": "parquet"}, {"max_bytes_per_file": 3000}]
    tables: Tables = {}
    for number in range(18):
        table = filled(folder / f"table-{number}")
        if number % 2:
            # A schema that changes on the way.
            table.change_metadata(fields=[("id", "long"), ("name", "string"), ("note", "string")])
            table.append([{"id": 90, "name": "y", "note": "new"}])
        tables[f"t{number}"] = {
            "path": str(table.folder),
            "from": ("snapshot", "0", "1")[number % 3],
            "max_files_per_batch": 1 + number % 4,
            "sink": sinks[number // 3 % 3],
        }
    return tables


def test_files_have_the_same_names_and_bytes_on_both_engines_and_a_broken_table_stops_alone(
    tmp_path: Path, command: Commands
) -> None:
    tables = many_tables(tmp_path)
    gone = filled(tmp_path / "gone")
    lost = sorted(gone.folder.glob("*.parquet"))[1]
    kept = lost.with_suffix(".kept")
    lost.rename(kept)
    broken: Tables = {
        "gone": {"path": str(gone.folder), "from": "0"},
        "missing": {"path": str(tmp_path / "no"), "from": "0"},
    }
    locations = {engine: tmp_path / engine for engine in ENGINES}
    for engine, location in locations.items():
        ran = run_on(command, engine, location, tables | broken)
        assert ran.status == 3, ran.errors
        assert "missing_data_file" in ran.errors
        assert "not_a_table" in ran.errors
        # Nothing of the broken one's batch, and nothing half written.
        assert files(location, "gone") == {}
        assert not list((location / "out").glob("*/.*.tmp"))

    kept.rename(lost)
    for engine, location in locations.items():
        assert run_on(command, engine, location, tables | broken).status == 3
    for name in [*tables, "gone"]:
        arrow, spark = (files(location, name) for location in locations.values())
        assert arrow.keys() == spark.keys(), name
        assert arrow == spark, name
        assert arrow, name
    assert any(path.suffix == ".parquet" for path in (tmp_path / "spark/out/t3").iterdir())
    assert len(files(tmp_path / "spark", "t6")) > 1


# Kafka


def records_of(broker: Broker, topic: str) -> dict[int, list[Record]]:
    found = defaultdict(list)
    for record in read_topic(broker.plain, topic):
        found[record.partition].append(record)
    return found


def in_common(
    found: dict[int, list[Record]], topic: str
) -> dict[int, list[tuple[bytes | None, bytes | None, list[Any], int | None]]]:
    """Return records without the name of their topic, and without the time of the delivery."""

    def without(value: bytes | None) -> bytes | None:
        if value is None:
            return None
        return re.sub(rb'"ts_([mun]s)":\d+', rb'"ts_\1":0', value.replace(topic.encode(), b"TOPIC"))

    return {
        partition: [
            (
                record.key,
                without(record.value),
                [(name, without(value)) for name, value in record.headers],
                record.timestamp_ms,
            )
            for record in records
        ]
        for partition, records in found.items()
    }


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_topics_have_the_same_records_in_the_same_partitions_on_both_engines(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, command: Commands, delivery: str
) -> None:
    history = KeyHistory(tmp_path / "table", random.Random(11))
    for _ in range(6):
        history.commit()
    found = {}
    for engine in ENGINES:
        topic = topics.create(partitions=3)
        markers = topics.create()
        sink = kafka(
            kafka_broker,
            topics,
            topic,
            format="debezium",
            delivery=delivery,
            headers={"v": "{commit_version}"},
            transaction_topic=markers,
            offsets="kafka",
        )
        orders = {"path": str(tmp_path / "table"), "from": "0", "max_files_per_batch": 3}
        ran = run_on(command, engine, tmp_path / engine, {"orders": {**orders, "sink": sink}})
        assert ran.status == 0, ran.errors
        rows, commits = records_of(kafka_broker, topic), records_of(kafka_broker, markers)
        found[engine] = in_common(rows, topic), in_common(commits, topic)
    assert found["spark"] == found["arrow"]
    assert len(found["arrow"][0]) == 3
    assert found["arrow"][1]


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_changes_of_columns_are_the_same_records_on_both_engines(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, command: Commands, delivery: str
) -> None:
    table = filled(tmp_path / "table")
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("note", "string")])
    table.append([{"id": 90, "name": "y", "note": "new"}])
    table.change_metadata(fields=[("id", "long"), ("note", "string")])
    found = {}
    for engine in ENGINES:
        topic, told = topics.create(), topics.create()
        sink = kafka(
            *(kafka_broker, topics, topic),
            delivery=delivery,
            schema_change_topic=told,
            offsets="kafka",
        )
        orders = {"path": str(tmp_path / "table"), "from": "0", "max_files_per_batch": 2}
        for _ in range(2):
            ran = run_on(command, engine, tmp_path / engine, {"orders": {**orders, "sink": sink}})
            assert ran.status == 0, ran.errors
        records = [json.loads(each.value or b"") for each in read_topic(kafka_broker.plain, told)]
        found[engine] = [{**record, "ts_ms": 0} for record in records]
        rows = [json.loads(each.value or b"") for each in read_topic(kafka_broker.plain, topic)]
        assert len(rows) == 13
    assert found["spark"] == found["arrow"]
    changes = [[each["change"] for each in record["changes"]] for record in found["arrow"]]
    assert changes == [[], ["added"], ["dropped"]]
    assert [record["_commit_version"] for record in found["arrow"]] == [0, 4, 5]


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_broken_table_of_many_into_kafka_stops_alone_and_goes_on_once_it_is_mended(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, command: Commands, delivery: str
) -> None:
    built = {name: filled(tmp_path / name) for name in ("a", "b", "c")}
    names = {name: topics.create(partitions=2) for name in built}
    tables: Tables = {
        name: {
            "path": str(table.folder),
            "from": "0",
            "sink": kafka(kafka_broker, topics, names[name], delivery=delivery),
        }
        for name, table in built.items()
    }
    lost = max(built["b"].folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    kept = lost.with_suffix(".kept")
    lost.rename(kept)
    ran = run_on(command, "spark", tmp_path / "d", tables)
    assert ran.status == 3
    assert "missing_data_file" in ran.errors
    kept.rename(lost)
    built["a"].append([{"id": 0, "name": "later"}])
    assert run_on(command, "spark", tmp_path / "d", tables).status == 0
    expected = {name: [4, 4, 4] for name in built} | {"a": [4, 4, 4, 1]}
    for name, topic in names.items():
        seen = {(each.key, each.value) for each in read_topic(kafka_broker.plain, topic)}
        if delivery == "exactly-once":
            assert len(read_topic(kafka_broker.plain, topic)) == len(seen)
        # What a failed try left may come again where that is what was asked for.
        versions = Counter(json.loads(value or b"")["_commit_version"] for _, value in seen)
        assert [versions[each] for each in sorted(versions)] == expected[name]


def kafka(broker: Broker, topics: Topics, topic: str, **fields: Any) -> dict[str, Any]:
    return {
        "kind": "kafka",
        "bootstrap_servers": broker.plain,
        "topic": topic,
        "key": ["id"],
        "offsets_topic": topics.new_name("offsets"),
        **fields,
    }


def id_of(record: Record) -> int:
    return int(json.loads(record.key or b"")["id"])


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_records_that_are_too_large_become_dead_letters_once(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, command: Commands, delivery: str
) -> None:
    topic = topics.create(partitions=4, config={"max.message.bytes": "2000"})
    dead = topics.create()
    table = TableBuilder(tmp_path / "table", start_ms=None)
    for version in range(3):
        sizes = [10, 5000] * 10
        table.append([{"id": 100 * version + n, "name": "x" * k} for n, k in enumerate(sizes)])
    letters = {"on_oversize": "dead-letter", "dead_letter_topic": dead, "delivery": delivery}
    sink = kafka(kafka_broker, topics, topic, **letters)
    orders = {"path": str(table.folder), "from": "0", "max_files_per_batch": 1, "sink": sink}
    assert run_on(command, "spark", tmp_path / "d", {"orders": orders}).status == 0
    kept = sorted(id_of(each) for each in read_topic(kafka_broker.plain, topic))
    assert kept == [100 * version + n for version in range(3) for n in range(0, 20, 2)]
    found = read_topic(kafka_broker.plain, dead)
    put_aside = sorted(id_of(each) for each in found)
    assert put_aside == [100 * version + n for version in range(3) for n in range(1, 20, 2)]
    assert {dict(each.headers)["tailerd.commit_version"] for each in found} == {b"0", b"1", b"2"}


@pytest.mark.full
def test_a_column_chooses_topics_that_are_made(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, command: Commands
) -> None:
    prefix = topics.new_name()
    table = TableBuilder(tmp_path / "table", start_ms=None)
    for each in "ab":
        topics.delete_later(f"{prefix}-{each}")
        table.append([{"id": n, "name": each} for n in range(30)])
    choosing = {"delivery": "exactly-once", "create_topic": {"partitions": 3}}
    sink = kafka(kafka_broker, topics, prefix + "-{column:name}", **choosing)
    orders = {"path": str(table.folder), "from": "0", "sink": sink}
    for _ in range(2):
        assert run_on(command, "spark", tmp_path / "d", {"orders": orders}).status == 0
    for each in "ab":
        records = read_topic(kafka_broker.plain, f"{prefix}-{each}")
        assert len(records) == 30
        assert {record.partition for record in records} == {0, 1, 2}
