"""Partition values and properties as other writers spell them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailerd.errors import CorruptLogError
from tests.formats.delta.test_messages import command
from tests.tables.builder import TableBuilder
from tests.tables.feed import changes

pytestmark = pytest.mark.attack

STRUCTS = {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpointInterval": "1"}


def make_table(folder: Path, kind: str, value: object, name: str = "p") -> TableBuilder:
    """Return a table with one row, in a file with this partition value."""
    table = TableBuilder(
        folder, fields=[("id", "long"), ("p", kind)], partition_by=["p"], properties=STRUCTS
    )
    table.create()
    [add] = table.data_files([{"id": 1, "p": None}])
    add["add"]["partitionValues"] = {name: value}
    table.commit(add)
    return table


def maintain(table: TableBuilder) -> Any:
    return command("maintain", table.folder, "--apply")


READ: list[tuple[str, object, object]] = [
    ("integer", 2024, 2024),
    ("long", "+7", 7),
    ("boolean", True, True),
    ("boolean", "Y", True),
    ("boolean", "0", False),
    ("string", 1.5, "1.5"),
    ("string", "", ""),
    ("binary", "", b""),
    ("integer", "", None),
    ("double", "-Infinity", float("-inf")),
    ("decimal(38,18)", "1.500000000000000000000000", Decimal("1.5")),
]


@pytest.mark.parametrize(("kind", "text", "value"), READ)
async def test_a_partition_value_is_read_as_delta_spark_reads_it(
    tmp_path: Path, kind: str, text: object, value: object
) -> None:
    table = make_table(tmp_path, kind, text)
    for start in ("1", "snapshot"):
        [row] = await changes(table.folder, start)
        assert row["p"] == value
    done = maintain(table)
    assert done.returncode == 0, done.stdout + done.stderr
    [checkpoint] = table.log.glob("*.checkpoint*.parquet")
    [add] = [row["add"] for row in pq.read_table(checkpoint).to_pylist() if row["add"]]
    assert add["partitionValues_parsed"] == {"p": value}
    [row] = await changes(table.folder, "snapshot")
    assert row["p"] == value


REFUSED: list[tuple[str, object]] = [
    ("integer", "1_0"),
    ("integer", "\u0661"),
    ("long", "1.0"),
    ("double", "1_0.5"),
    ("double", "\u0661"),
    ("decimal(38,18)", "1.0000000000000000005"),
    ("decimal(10,2)", "NaN"),
    ("decimal(10,2)", "1_0"),
    ("boolean", "maybe"),
    ("date", "\u0662\u0660\u0662\u0664-01-01"),
    ("integer", [1]),
    ("string", {"a": 1}),
]


@pytest.mark.parametrize(("kind", "text"), REFUSED)
async def test_a_partition_value_that_is_not_of_its_type_is_refused(
    tmp_path: Path, kind: str, text: object
) -> None:
    table = make_table(tmp_path, kind, text)
    for start in ("1", "snapshot"):
        with pytest.raises(CorruptLogError, match="partition value"):
            await changes(table.folder, start)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("date", "-0044-03-15"),
        ("date", "+12345-01-01"),
        ("timestamp", "-0044-03-15 01:02:03"),
        ("timestamp", "+12345-01-01T00:00:00.000000Z"),
        ("timestamp_ntz", "+12345-01-01 00:00:00"),
    ],
)
async def test_years_beyond_those_of_python_can_be_partition_values(
    tmp_path: Path, kind: str, text: str
) -> None:
    table = make_table(tmp_path, kind, text)
    [add] = table.data_files([{"id": 2, "p": None}])
    add["add"]["partitionValues"] = {"p": text}
    table.commit(add, table.remove(table_add(table)))
    for start in ("1", "snapshot"):
        done = command("tail", table.folder, "--from", start, "--once", "--format", "jsonl")
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert {str(row["p"])[:6] for row in rows} == {text[:6]}
    assert maintain(table).returncode == 0


def table_add(table: TableBuilder) -> Any:
    [add] = [json.loads(line) for line in table.commit_path(1).read_text().splitlines()][-1:]
    return add


@pytest.mark.parametrize("column", ["P", "other"])
async def test_a_partition_column_that_the_schema_does_not_have_is_refused(
    tmp_path: Path, column: str
) -> None:
    table = make_table(tmp_path, "string", "x", name=column)
    table.commit(table.metadata(partitionColumns=[column]))
    for start in ("2", "snapshot"):
        with pytest.raises(CorruptLogError, match=f"partitioned by '{column}'"):
            await changes(table.folder, start)
    done = maintain(table)
    assert f"partitioned by '{column}'" in done.stderr + done.stdout
    assert not list(table.log.glob("*.checkpoint*"))


async def test_a_partition_value_under_another_key_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path, "string", "x", name="P")
    for start in ("1", "snapshot"):
        with pytest.raises(CorruptLogError, match="no partition value of the column p"):
            await changes(table.folder, start)
    done = maintain(table)
    assert "no partition value of the column p" in done.stderr + done.stdout
    assert not list(table.log.glob("*.checkpoint*"))


async def test_nulls_and_scalars_are_read_where_texts_are_meant(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, writer_features=["domainMetadata"], properties=STRUCTS)
    table.create()
    metadata = table.metadata()
    metadata["metaData"]["configuration"] |= {"k": None, "flag": True, "n": 7}
    metadata["metaData"] |= {"name": None, "createdTime": None}
    metadata["metaData"]["format"] = {"provider": "parquet", "options": None}
    [add] = table.data_files([{"id": 1, "name": "a"}])
    add["add"] |= {"deletionVector": None, "stats": None, "tags": None, "baseRowId": None}
    table.commit(
        metadata,
        add,
        {"domainMetadata": {"domain": "d", "configuration": None, "removed": True}},
        {"domainMetadata": {"domain": "e", "configuration": "{}", "removed": None}},
        {"txn": {"appId": "a", "version": 1, "lastUpdated": None}},
    )
    table.append([{"id": 2, "name": "b"}])
    for start in ("1", "snapshot"):
        assert {row["id"] for row in await changes(table.folder, start)} == {1, 2}
    done = maintain(table)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2:020}.checkpoint" in " ".join(path.name for path in table.log.iterdir())
    assert {row["id"] for row in await changes(table.folder, "snapshot")} == {1, 2}
