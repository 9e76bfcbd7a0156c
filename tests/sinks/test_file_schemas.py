"""Changes of columns are files next to those of the rows, and come and go with them."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Version
from tailerd.errors import SinkError
from tailerd.records.json import JsonEncoder
from tailerd.records.schema_changes import SchemaChange, compare_schemas
from tailerd.sinks.base import Delivery, RemoteDelivery
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.sink import FileSink
from tests.contracts.test_sink import batch, delivery, file_rows, inserts, offset
from tests.remote_deliveries import remote_delivery

Kind = TypeVar("Kind", Delivery, RemoteDelivery)


def sink(folder: Path, **fields: object) -> FileSink:
    config = FileSinkConfig.model_validate({"kind": "file", "path": str(folder), **fields})
    return FileSink(config, encode=JsonEncoder().encode_lines)


def change(version: int) -> SchemaChange:
    """Return the addition of a column that is named by its version."""
    new = pa.schema([pa.field(f"c{version}", pa.int64())])
    return SchemaChange(
        version=Version(version),
        timestamp_us=0,
        schema=new,
        changes=compare_schemas(pa.schema([]), new),
    )


def with_changes(one: Kind, *versions: int) -> Kind:
    return replace(one, schema_changes=deque(map(change, versions)))


def records(folder: Path) -> list[Path]:
    return sorted(folder.glob("_*.schema.json"))


def told(folder: Path) -> list[str]:
    """Return the columns that are told, in the order of the files."""
    return [json.loads(path.read_text())["changes"][0]["column"] for path in records(folder)]


def folders(folder: Path) -> list[Path]:
    return list(folder.glob("replaced-*"))


async def test_a_change_is_a_file_that_readers_of_the_rows_do_not_see(tmp_path: Path) -> None:
    target = sink(tmp_path, format="parquet")
    await target.resume(offset(0))
    await target.write(with_changes(delivery(0, batch(0, [1]), batch(1, [2])), 0, 1))
    [first, second] = records(tmp_path)
    assert first.name == f"_{0:020}-1-{0:020}-00000.schema.json"
    assert second.name == f"_{1:020}-1-{0:020}-00000.schema.json"
    record = json.loads(first.read_text())
    assert (record["table"], record["_event"], record["_commit_version"]) == ("orders", "schema", 0)
    assert ds.dataset(tmp_path, format="parquet").to_table()["id"].to_pylist() == [1, 2]


async def test_two_changes_in_one_commit_are_two_files(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(3))
    await target.write(with_changes(delivery(3, batch(3, [1])), 3, 3))
    assert told(tmp_path) == ["c3", "c3"]


async def test_a_change_without_rows_is_told(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write(with_changes(delivery(0), 0))
    assert told(tmp_path) == ["c0"]
    await sink(tmp_path).resume(offset(1))
    assert told(tmp_path) == ["c0"]


async def test_a_delivery_that_is_repeated_tells_each_change_once(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write(with_changes(delivery(0, batch(0, [1])), 0))
    await target.write(with_changes(delivery(1, batch(1, [2]), batch(2, [3])), 2))
    # As after a crash before the offset was saved; now the commits come one by one.
    target = sink(tmp_path)
    await target.resume(offset(1))
    assert told(tmp_path) == ["c0"]
    await target.write(delivery(1, batch(1, [2])))
    await target.write(with_changes(delivery(2, batch(2, [3])), 2))
    assert told(tmp_path) == ["c0", "c2"]
    assert file_rows(tmp_path) == [*inserts(0, 1), *inserts(1, 2), *inserts(2, 3)]


async def test_a_reset_into_a_delivery_removes_the_changes_after_it(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    rows = [batch(version, [version]) for version in range(4)]
    await target.write(replace(with_changes(delivery(0, *rows), 0, 1, 3), end=offset(4)))
    target = sink(tmp_path)
    await target.accept(offset(2))
    await target.resume(offset(2))
    assert told(tmp_path) == ["c0", "c1"]
    assert [row[0] for row in file_rows(tmp_path)] == [0, 1]


async def test_a_failed_write_leaves_no_change(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    (tmp_path / f"_{0:020}-1-{0:020}-00000.schema.json").mkdir()
    with pytest.raises(SinkError):
        await target.write(with_changes(delivery(0, batch(0, [1])), 0))
    assert file_rows(tmp_path) == []


async def test_changes_of_another_history_go_with_its_rows(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write(with_changes(delivery(0, batch(0, [1])), 0))
    end = replace(offset(0), table_id="table-2")
    await target.note_gap(Gap(table="orders", start=offset(1), end=end, reason="table_recreated"))
    assert told(tmp_path) == []
    [aside] = folders(tmp_path)
    assert told(aside) == ["c0"]


async def test_a_change_comes_with_rows_that_another_process_writes(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write_remotely(with_changes(remote_delivery(0, batch(0, [1])), 0))
    assert told(tmp_path) == ["c0"]
    assert file_rows(tmp_path) == inserts(0, 1)
