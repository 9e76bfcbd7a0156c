"""A snapshot with an end that is older than the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import tiledb

import tailerd
from tailerd.changefeed.offset import Phase
from tailerd.errors import TableError
from tailerd.spark.change_range import batch_range, ending_offset, starting_offset
from tailerd.spark.options import ReadOptions
from tailerd.spark.table_source import open_source
from tests.formats.delta.test_messages import command
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.attack


def delta_table(folder: Path) -> list[int]:
    table = TableBuilder(folder, fields=[("id", "long")])
    return [table.append([{"id": number}]).version for number in range(5)]


def lance_table(folder: Path) -> list[int]:
    versions = []
    for number in range(5):
        rows = pa.table({"id": [number]})
        versions.append(lance.write_dataset(rows, folder, mode="append" if number else "create"))
    return [table.version for table in versions]


def tiledb_array(folder: Path) -> list[int]:
    domain = tiledb.Domain(tiledb.Dim(name="id", domain=(0, 99), tile=10, dtype=np.int64))
    attribute = tiledb.Attr(name="v", dtype=np.int64)
    schema = tiledb.ArraySchema(domain=domain, attrs=[attribute], sparse=True)
    tiledb.Array.create(str(folder), schema)
    for number in range(5):
        with tiledb.open(str(folder), "w", timestamp=1000 + number) as array:
            array[[number]] = {"v": np.array([number])}
    return [1000 + number for number in range(5)]


TABLES: list[Callable[[Path], list[int]]] = [delta_table, lance_table, tiledb_array]


@pytest.mark.parametrize("make", TABLES)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_tail_and_python_give_the_snapshot_of_the_end(
    tmp_path: Path, make: Callable[[Path], list[int]], at: int
) -> None:
    folder = tmp_path / "t"
    version = make(folder)[at]
    done = command(
        *("tail", folder, "--from", "snapshot", "--to", str(version), "--once", "--format", "jsonl")
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(at + 1))
    assert {row["_commit_version"] for row in rows} == {version}
    found = tailerd.changes(str(folder), since="snapshot", until=version).to_arrow()
    assert sorted(found.column("id").to_pylist()) == list(range(at + 1))


async def test_spark_gives_the_snapshot_of_the_end(tmp_path: Path) -> None:
    version = delta_table(tmp_path / "t")[2]
    given = {"path": str(tmp_path / "t"), "endingVersion": str(version)}
    options = ReadOptions.parse({**given, "snapshot": "true"})
    source = await open_source(options)
    start, _ = await batch_range(source, options)
    assert (start.version, start.phase) == (version, Phase.SNAPSHOT)
    # A stream begins with a snapshot by default.
    options = ReadOptions.parse(given)
    end = await ending_offset(source, options)
    start = await starting_offset(source, options, snapshot_by_default=True, end=end)
    assert (start.version, start.phase) == (version, Phase.SNAPSHOT)


def test_a_snapshot_that_can_no_longer_be_read_is_an_error(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long")])
    for number in range(5):
        table.append([{"id": number}])
    table.checkpoint()
    for version in range(4):
        table.commit_path(version).unlink()
    done = command("tail", tmp_path, "--from", "snapshot", "--to", "2", "--once")
    assert done.returncode == 3
    with pytest.raises(TableError):
        tailerd.changes(str(tmp_path), since="snapshot", until=2).to_arrow()
