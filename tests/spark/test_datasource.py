"""Filters leave out what cannot pass them, and nothing else."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import UsageError
from tailerd.spark.datasource import FilteringBatchReader, FilteringDataSource
from tailerd.spark.partitions import ChangePartition
from tests.tables.builder import CDF, TableBuilder

FIELDS = [("id", "long"), ("p", "string"), ("day", "date"), ("price", "decimal(6,2)")]
DAY = dt.date(2024, 3, 1)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Versions 1 to 4 add a file each, p is a, b, ä and null; version 5 removes the first."""
    table = TableBuilder(tmp_path, fields=FIELDS, partition_by=["p", "day", "price"])
    table.create()
    for version, p in enumerate(["a", "b", "ä", None], start=1):
        day = None if p is None else DAY + dt.timedelta(days=version)
        price = None if p is None else decimal.Decimal(version) / 4
        table.append([{"id": version, "p": p, "day": day, "price": price}])
    table.commit(table.remove({"add": next(iter(table.state(1).adds.values()))}))
    return table


def _reader(table: TableBuilder, **options: str) -> FilteringBatchReader:
    source = FilteringDataSource({"path": str(table.folder), **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteringBatchReader)
    return reader


def _tasks(table: TableBuilder, *filters: Filter, **options: str) -> list[ChangeTask]:
    reader = _reader(table, **options)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark still applies them"
    parts = [part for part in reader.partitions() if isinstance(part, ChangePartition)]
    return [each for part in parts for each in part.tasks]


@pytest.mark.parametrize(
    ("given", "versions"),
    [
        (EqualTo(("p",), "a"), [1, 5]),
        (EqualTo(("p",), "ä"), [3]),
        (EqualTo(("p",), "nothing"), []),
        (EqualNullSafe(("p",), "b"), [2]),
        (EqualNullSafe(("p",), None), [1, 2, 3, 4, 5]),
        (GreaterThan(("p",), "a"), [2, 3]),
        (LessThanOrEqual(("p",), "b"), [1, 2, 5]),
        (In(("p",), ("b", "ä", None)), [2, 3]),
        (IsNull(("p",)), [4]),
        (IsNotNull(("p",)), [1, 2, 3, 5]),
        (Not(EqualTo(("p",), "a")), [1, 2, 3, 4, 5]),
        (StringStartsWith(("p",), "z"), [1, 2, 3, 4, 5]),
        (EqualTo(("p",), 7), [1, 2, 3, 5]),
        (EqualTo(("day",), DAY + dt.timedelta(days=2)), [2]),
        (LessThan(("day",), DAY + dt.timedelta(days=2)), [1, 5]),
        (EqualTo(("price",), decimal.Decimal("0.5")), [2]),
        (GreaterThanOrEqual(("price",), 1), []),
        (EqualTo(("id",), 1), [1, 2, 3, 4, 5]),
        (EqualTo(("_change_type",), "delete"), [5]),
        (In(("_change_type",), ("insert",)), [1, 2, 3, 4]),
        (EqualTo(("_commit_version",), 3), [3]),
        (GreaterThan(("_commit_version",), 3), [4, 5]),
        (GreaterThanOrEqual(("_commit_version",), 3), [3, 4, 5]),
        (LessThan(("_commit_version",), 3), [1, 2]),
        (LessThanOrEqual(("_commit_version",), -1), []),
        (In(("_commit_version",), (2, 4)), [2, 4]),
        (LessThan(("_commit_timestamp",), dt.datetime(1999, 1, 1, tzinfo=dt.UTC)), []),
        (LessThan(("_commit_timestamp",), dt.datetime(1999, 1, 1)), [1, 2, 3, 4, 5]),
        (IsNotNull(("_commit_timestamp",)), [1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_a_filter_leaves_out_files_of_which_no_row_can_pass(
    table: TableBuilder, given: Filter, versions: list[int]
) -> None:
    assert [task.version for task in _tasks(table, given)] == versions


def test_all_filters_must_be_able_to_pass(table: TableBuilder) -> None:
    both = [EqualTo(("p",), "a"), GreaterThan(("_commit_version",), 1)]
    assert [task.version for task in _tasks(table, *both)] == [5]


def test_commits_that_a_filter_leaves_out_are_not_even_looked_at(table: TableBuilder) -> None:
    table.checkpoint(3)
    table.commit_path(2).write_text("{damaged\n")
    found = _tasks(table, GreaterThan(("_commit_version",), 3), startingVersion="2")
    assert [task.version for task in found] == [4, 5]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (EqualTo(("_commit_version",), 5), 3),
        (LessThan(("_commit_version",), 5), 0),
        (EqualTo(("p",), "b"), 1),
    ],
    ids=str,
)
def test_a_snapshot_is_filtered_like_its_version(
    table: TableBuilder, given: Filter, count: int
) -> None:
    assert len(_tasks(table, given, snapshot="true")) == count


def test_change_files_may_hold_any_change(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.append([{"id": 1, "name": "a"}])
    table.commit(table.cdc_file([{"id": 1, "name": "a", "_change_type": "delete"}]))
    assert len(_tasks(table, EqualTo(("_change_type",), "delete"))) == 1
    assert len(_tasks(table, EqualTo(("_change_type",), "update_preimage"))) == 1


def _names(table: TableBuilder, columns: str) -> list[str]:
    source = FilteringDataSource({"path": str(table.folder), "columns": columns})
    return source.schema().names


def test_columns_come_in_the_order_in_which_they_are_named(table: TableBuilder) -> None:
    change = ["_change_type", "_commit_version", "_commit_timestamp"]
    assert _names(table, "p, id") == ["p", "id", *change]
    rows: list[Any] = []
    reader = _reader(table, columns="p, id")
    for part in reader.partitions():
        for batch in reader.read(part):
            assert isinstance(batch, pa.RecordBatch)
            rows += batch.to_pylist()
    assert [(row["id"], row["p"]) for row in rows] == [
        (1, "a"),
        (2, "b"),
        (3, "ä"),
        (4, None),
        (1, "a"),
    ]


@pytest.mark.parametrize("columns", ["nothing", "id,,p", ""])
def test_columns_that_are_none_are_refused_with_the_reason(
    table: TableBuilder, columns: str
) -> None:
    with pytest.raises(UsageError, match="column"):
        _names(table, columns)


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("year", ["10000", "-0001", "0000"])
def test_a_value_of_years_that_python_lacks_excludes_nothing(
    tmp_path: Path, kind: str, year: str
) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long"), ("at", kind)], partition_by=["at"])
    file = table.data_file(pa.table({"id": [1]}), partition={"at": f"{year}-01-01"})
    table.create(file)
    for each in (
        GreaterThan(("at",), DAY),
        LessThan(("at",), DAY),
        EqualTo(("at",), DAY),
        IsNull(("at",)),
        IsNotNull(("at",)),
        In(("at",), (DAY,)),
    ):
        assert len(_tasks(table, each)) == 1


@pytest.mark.parametrize(
    ("expected", "ids"),
    [
        (GreaterThan(("_commit_version",), 0), [1, 0, 1, 2, 3, 4]),
        (EqualTo(("_commit_version",), 2), [0, 1, 2]),
        (EqualTo(("_commit_version",), 3), [3]),
        (EqualTo(("_commit_version",), 4), [4]),
        (GreaterThan(("_commit_version",), 4), []),
        (GreaterThan(("_commit_version",), 99), []),
    ],
)
def test_commits_may_be_left_out_before_a_table_was_replaced(
    expected: Filter, ids: list[int], tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path)
    for version in range(2):
        table.append([{"id": version, "name": "x"}])
    removed = [table.remove({"add": action}) for action in table.state().adds.values()]
    table.table_id = "00000000-0000-4000-8000-000000000007"
    table.commit(table.metadata(), *removed, *table.data_files([{"id": 2, "name": "x"}]))
    for version in range(3, 5):
        table.append([{"id": version, "name": "x"}])
    reader = _reader(table)
    reader.pushFilters([expected])
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == ids


def test_filters_and_rows_have_the_zone_that_an_option_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = TableBuilder(
        tmp_path, fields=[("id", "long"), ("at", "timestamp")], partition_by=["at"]
    )
    partition = {"at": "2024-10-27 02:30:00"}
    table.create(table.data_file(pa.table({"id": [1]}), partition=partition))
    for options, hour in (({"partitionTimezone": "Europe/Berlin"}, 0), ({}, 2)):
        instant = dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC)
        reader = _reader(table, **options)
        list(reader.pushFilters([EqualTo(("at",), instant), IsNotNull(("at",))]))
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert [batch.column("at").to_pylist() for batch in found] == [[instant]]
        assert ("warning[zone_assumed]" in capsys.readouterr().err) == (not options)
