"""Changes of columns in a topic of their own: with the rows that have them, or not at all."""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Version
from tailerd.errors import SinkError
from tailerd.records.schema_changes import SchemaChange, compare_schemas
from tailerd.sinks.base import Delivery
from tests.cli.commands import started
from tests.integration.kafka.test_delivery import (
    BOTH,
    KafkaTarget,
    commit,
    make_ids,
    offset,
    target,
)
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.kafka

__all__ = ["target"]


def change(version: int) -> SchemaChange:
    """Return the addition of a column that is named by its version."""
    old = pa.schema([pa.field("id", pa.int64())])
    new = pa.schema([*old, pa.field(f"c{version}", pa.decimal128(9, 2))])
    changes = compare_schemas(old, new)
    return SchemaChange(version=Version(version), timestamp_us=0, schema=new, changes=changes)


def with_change(version: int, *ids: int) -> Delivery:
    """Return a commit whose change is pending before its rows are yielded."""
    pending: deque[SchemaChange] = deque()

    async def give() -> AsyncIterator[ChangeBatch]:
        pending.append(change(version))
        if ids:
            yield make_ids(version, *ids)

    return replace(commit(version), batches=give(), schema_changes=pending)


def told(target: KafkaTarget) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in target.read(target.other)]


@BOTH
async def test_each_change_is_a_record_before_its_rows(target: KafkaTarget, guarantee: str) -> None:
    target.create()
    target.topics.create(target.other)
    async with target.open(guarantee, schema_change_topic=target.other) as sink:
        assert await sink.write(with_change(0, 1)) == 1
        assert await sink.write(commit(1, make_ids(1, 2))) == 1
        assert await sink.write(with_change(2)) == 0
    [first, second] = told(target)
    assert (first["table"], first["_event"], first["_commit_version"]) == (
        *(target.topic, "schema", 0),
    )
    assert first["changes"][0]["column"] == "c0"
    assert second["changes"][0]["column"] == "c2"
    assert target.ids() == [1, 2]
    [event, _] = target.read(target.other)
    assert json.loads(event.key or b"") == {"table": target.topic}
    [row, _] = target.read()
    assert event.timestamp_ms is not None
    assert row.timestamp_ms is not None
    assert event.timestamp_ms > row.timestamp_ms, "a topic keeps it however old the commit is"


async def test_a_change_of_a_failed_delivery_is_not_seen(target: KafkaTarget) -> None:
    target.create()
    target.topics.create(target.other)

    async def fail(pending: deque[SchemaChange]) -> AsyncIterator[ChangeBatch]:
        pending.append(change(0))
        yield make_ids(0, 1)
        raise SinkError("reading failed")

    async with target.open(schema_change_topic=target.other) as sink:
        pending: deque[SchemaChange] = deque()
        with pytest.raises(SinkError, match="reading failed"):
            await sink.write(replace(commit(0), batches=fail(pending), schema_changes=pending))
        await sink.fence()
        await sink.resume(offset(0))
        await sink.write(with_change(0, 1))
    assert len(told(target)) == 1
    assert target.ids() == [1]


async def test_without_a_topic_nothing_is_told(target: KafkaTarget) -> None:
    target.create()
    async with target.open() as sink:
        await sink.write(with_change(0, 1))
    assert target.ids() == [1]


@pytest.mark.parametrize("fields", [{"format": "debezium", "key": ["id"], "topic_prefix": "lake"}])
async def test_debeziums_form_goes_with_debeziums_values(
    target: KafkaTarget, fields: dict[str, Any]
) -> None:
    target.create()
    target.topics.create(target.other)
    async with target.open(schema_change_topic=target.other, **fields) as sink:
        await sink.write(with_change(0, 1))
    [record] = target.read(target.other)
    assert json.loads(record.key or b"") == {"databaseName": ""}
    [value] = told(target)
    assert value["source"]["name"] == "lake"
    assert value["ts_ms"] > value["source"]["ts_ms"] == 0
    assert (value["databaseName"], value["schemaName"], value["ddl"]) == ("", None, None)
    [altered] = value["tableChanges"]
    assert (altered["type"], altered["id"]) == ("ALTER", f'"{target.topic}"')
    assert altered["table"]["primaryKeyColumnNames"] == ["id"]
    columns = altered["table"]["columns"]
    assert [(c["name"], c["jdbcType"], c["length"], c["scale"]) for c in columns] == [
        ("id", -5, None, None),
        ("c0", 3, 9, 2),
    ]
    assert value["changes"][0]["column"] == "c0"


async def test_a_missing_topic_is_created_or_refused(target: KafkaTarget) -> None:
    target.create()
    with pytest.raises(Exception, match=target.other):
        await target.sink(schema_change_topic=target.other).healthcheck()
    async with target.open(schema_change_topic=target.other, create_topic={}) as sink:
        await sink.write(with_change(0, 1))
    assert len(told(target)) == 1


@pytest.mark.full
@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def test_kills_lose_and_repeat_no_change(target: KafkaTarget, tmp_path: Path, engine: str) -> None:
    target.create()
    target.topics.create(target.other)
    table, out = TableBuilder(tmp_path / "t", start_ms=None), tmp_path / "out"
    kafka = {
        "kind": "kafka",
        "bootstrap_servers": target.broker.plain,
        "topic": target.topic,
        "delivery": "exactly-once",
        "offsets_topic": target.offsets,
        "schema_change_topic": target.other,
    }
    sinks = {"topic": {"sink": kafka}, "files": {"sink": {"kind": "file", "path": str(out)}}}
    tables = {"t": {"path": str(table.folder), "from": 0, "sinks": sinks}}
    settings = {"engine": engine, "state": str(tmp_path / "state"), "http": {"listen": None}}
    config = tmp_path / "tailerd.yaml"
    config.write_text(json.dumps({**settings, "tables": tables}))
    draw, names = random.Random(7), []
    table.append([{"id": 0}])
    for number in range(12):
        names.append(f"c{number}")
        table.change_metadata(fields=[*table.fields, (names[-1], "string")])
        table.append([{"id": number, names[-1]: "x"}])
        with started("run", "--config", config) as process:
            time.sleep(draw.uniform(0.8, 1.6) if engine == "arrow" else draw.uniform(4, 8))
            process.process.kill()
    with started("run", "--config", config, "--once") as process:
        assert process.end(120)[0] == 0
    files = [json.loads(path.read_text()) for path in sorted(out.glob("_*.schema.json"))]
    for found in (told(target), files):
        assert found[0]["changes"] == []
        columns = [change["column"] for event in found for change in event["changes"]]
        first = {column["name"] for column in found[0]["columns"]}
        assert columns == [name for name in names if name not in first]
    assert sorted(target.ids()) == sorted([0, *range(12)])
