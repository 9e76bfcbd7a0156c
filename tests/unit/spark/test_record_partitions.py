"""A group's rows are read as a single table's are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.formats.delta.changes.source import DeltaChangeSource
from tailerd.formats.delta.protocol.data_file import data_file
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.encoded_records import VALUE
from tailerd.spark.group.record_partitions import TableRows, pack_tables, read_records
from tailerd.storage.stores import Stores
from tests.tables.builder import TableBuilder


async def test_the_files_behind_are_under_way_when_the_first_record_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path)
    for number in range(3):
        table.append([{"id": number, "name": "a"}])
    source = await DeltaChangeSource.open(str(tmp_path))
    start, end = await source.initial_offset("0"), await source.initial_offset("latest")
    tasks = [task async for group in source.plan(start, end) for task in group.tasks]
    [partition] = pack_tables([TableRows(name="t", table_id="", kafka=None, tasks=tasks)])
    begun: list[str] = []
    # A local file is not begun: only a bucket makes one wait for it.
    stores = Stores()
    monkeypatch.setattr(stores, "begin_data_file", begun.append)

    pieces = read_records(partition, stores)
    first = next(pieces)

    assert begun == [data_file(task).url for task in tasks]
    assert [piece.version for piece in (first, *pieces)] == [0, 1, 2]


@pytest.mark.parametrize("start", ["0", "snapshot"])
async def test_records_tell_the_identity_their_table_had_in_that_version(
    start: str, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path, table_id="old")
    table.append([{"id": 0, "name": "a"}])
    removed = [table.remove({"add": action}) for action in table.state().adds.values()]
    source = await DeltaChangeSource.open(str(tmp_path))
    begin = await source.initial_offset(start)
    table.table_id = "new"
    table.commit(table.metadata(), *removed, *table.data_files([{"id": 1, "name": "a"}]))
    source = await DeltaChangeSource.open(str(tmp_path))
    end = await source.initial_offset("latest")
    tasks = [task async for group in source.plan(begin, end) for task in group.tasks]
    fields = {"topic": "t", "bootstrap_servers": "h:1", "format": "debezium", "key": ["id"]}
    kafka = KafkaSinkConfig.model_validate({"kind": "kafka", **fields})
    rows = TableRows(name="t", table_id=end.table_id, kafka=kafka, tasks=tasks)

    told = set()
    for partition in pack_tables([rows]):
        for piece in read_records(partition, Stores()):
            for value in filter(None, piece.records[VALUE].to_pylist()):
                told.add((piece.version, json.loads(value)["source"]["table_id"]))
    assert told == {(0, "old"), (1, "new")}
