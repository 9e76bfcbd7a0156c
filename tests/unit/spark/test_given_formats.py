"""Formats with registered schemas on their way to tasks: asked for once, read as data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError
from tailerd.formats.delta.changes.source import DeltaChangeSource
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.encoded_records import VALUE
from tailerd.spark.given_formats import DriverFormats
from tailerd.spark.group.record_partitions import TableRows, pack_tables, read_records
from tailerd.spark.packed_records import packed, unpacked
from tailerd.storage.stores import Stores
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field, struct
from tests.unit.sinks.kafka.test_registry_client import Scripted


async def planned(folder: Path) -> list[ChangeTask]:
    """Return the tasks of a table with ids, comments and nested fields, of two schemas."""
    inner = struct(field("x", "long", comment="Inside"))
    fields = [field("id", "long", comment="Key"), field("s", inner), field("name", "string")]
    table = TableBuilder(folder, fields=fields, mapping="name")
    table.append([{"id": 1, "s": {"x": 2}, "name": "a"}])
    table.append([{"id": 2, "s": None, "name": "b"}])
    table.change_metadata(fields=[*table.fields, field("more", "double")])
    table.append([{"id": 3, "s": {"x": None}, "name": None, "more": 1.5}])
    source = await DeltaChangeSource.open(str(folder))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    return [task async for group in source.plan(start, end) for task in group.tasks]


def section(url: str, **fields: Any) -> KafkaSinkConfig:
    return KafkaSinkConfig.model_validate(
        {
            "kind": "kafka",
            "topic": "t",
            "bootstrap_servers": "h:1",
            "key": ["id"],
            "schema_registry": {"urls": [url], "retries": 0},
            **fields,
        }
    )


@pytest.mark.parametrize("form", ["avro", "protobuf", "json_schema"])
async def test_tasks_write_the_ids_that_the_driver_was_told_and_ask_nobody(
    form: str, tmp_path: Path
) -> None:
    tasks = await planned(tmp_path)
    with Scripted().serving() as server:
        kafka = section(server.url, format=form)
        formats = DriverFormats(kafka, "t").of_tasks(tasks, "id-1")
        assert server.asked
    rows = TableRows(name="t", table_id="id-1", kafka=kafka, tasks=tasks, formats=formats)
    partitions = pickle.loads(pickle.dumps(pack_tables([rows])))
    values = [
        value
        for partition in partitions
        for piece in read_records(partition, Stores())
        for value in piece.records[VALUE].to_pylist()
    ]
    assert [value[:5] for value in values] == [b"\0\0\0\0\x07"] * 3


async def test_rows_of_a_schema_that_was_not_planned_are_a_bug(tmp_path: Path) -> None:
    tasks = await planned(tmp_path)
    with Scripted().serving() as server:
        formats = DriverFormats(section(server.url, format="avro"), "t").of_tasks(tasks, "id-1")
    with pytest.raises(BugError, match="other"):
        formats.of_rows("id-1", pa.schema([("other", pa.int64())]))


async def test_headers_of_events_follow_their_records_through_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.spark.packed_records.PIECE_BYTES", 64)
    table = TableBuilder(tmp_path)
    table.append([{"id": number, "name": "a" * 50} for number in range(9)])
    source = await DeltaChangeSource.open(str(tmp_path))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    fields = {"topic": "t", "bootstrap_servers": "h:1", "format": "cloudevents"}
    kafka = KafkaSinkConfig.model_validate({"kind": "kafka", **fields})
    rows = TableRows(name="t", table_id="id-1", kafka=kafka, tasks=tasks)
    [partition] = pack_tables([rows])
    ids = []
    for piece in unpacked(packed(read_records(partition, Stores()))):
        [found] = [header.value for header in piece.headers if header.name == "ce_id"]
        assert isinstance(found, pa.Array)
        assert len(found) == piece.records.num_rows
        ids += found.to_pylist()
    assert ids == [f"{source.table_id}/0/0.{number}" for number in range(9)]
