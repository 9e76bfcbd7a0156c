"""`spark.read.format("tailerd")`: ranges, snapshots, columns, schema changes, bad options."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import tailerd.spark
from tailerd.errors import (
    ChangeFeedDisabledError,
    MissingDataFileError,
    MissingVersionError,
    NotATableError,
    SchemaChangedError,
    TailerdError,
    UsageError,
)
from tailerd.spark.query_errors import parse_error
from tests.tables.builder import CDF, TableBuilder
from tests.tables.delta_schema import array, field, map_of, struct

pytestmark = pytest.mark.spark

Change = tuple[int, str, int]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    """Versions 0 to 4 insert two rows each, version 5 deletes one row by a deletion vector."""
    table = TableBuilder(tmp_path_factory.mktemp("orders"), reader_features=["deletionVectors"])
    first = table.append(_rows(0))
    for version in range(1, 5):
        table.append(_rows(version))
    table.delete_rows(first.adds[0], [1])
    return table


def _rows(version: int) -> list[dict[str, Any]]:
    return [{"id": version * 10 + n, "name": f"n{n}"} for n in range(2)]


def _read(spark: SparkSession, table: TableBuilder, **options: str) -> DataFrame:
    return spark.read.format("tailerd").options(**options).load(str(table.folder))


def _changes(frame: DataFrame) -> list[Change]:
    rows = frame.select("id", "_change_type", "_commit_version").collect()
    return sorted((row[0], row[1], row[2]) for row in rows)


def _inserts(*versions: int) -> list[Change]:
    return [(row["id"], "insert", v) for v in versions for row in _rows(v)]


DELETE = (1, "delete", 5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [*_inserts(0, 1, 2, 3, 4), DELETE]),
        ({"startingVersion": "3"}, [DELETE, *_inserts(3, 4)]),
        ({"startingVersion": "1", "endingVersion": "2"}, _inserts(1, 2)),
        ({"endingVersion": "0"}, _inserts(0)),
        ({"startingVersion": "4", "endingVersion": "999"}, [DELETE, *_inserts(4)]),
        ({"startingVersion": "latest"}, []),
        ({"startingVersion": "6"}, []),
        ({"startingTimestamp": "2024-01-01 00:00:03"}, [DELETE, *_inserts(3, 4)]),
        ({"startingTimestamp": "2024-01-01T00:00:02.001Z", "endingVersion": "3"}, _inserts(3)),
        ({"startingVersion": "1", "endingTimestamp": "2024-01-01T00:00:02Z"}, _inserts(1, 2)),
        ({"endingTimestamp": "2024-01-01T00:00:01.999Z"}, _inserts(0, 1)),
        ({"changes": "files", "startingVersion": "5"}, [DELETE]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_range_gives_its_commits_and_no_others(
    spark: SparkSession, orders: TableBuilder, options: dict[str, str], expected: list[Change]
) -> None:
    assert _changes(_read(spark, orders, **options)) == sorted(expected)


def test_a_snapshot_is_the_table_as_it_is_at_the_end(
    spark: SparkSession, orders: TableBuilder
) -> None:
    head = _changes(_read(spark, orders, snapshot="true"))
    assert head == sorted((row["id"], "insert", 5) for row in orders.rows())
    old = _changes(_read(spark, orders, snapshot="true", endingVersion="2"))
    assert old == sorted((row["id"], "insert", 2) for row in orders.rows(2))


def test_a_snapshot_before_a_start_is_followed_by_the_commits_after_it(
    spark: SparkSession, orders: TableBuilder
) -> None:
    found = _changes(_read(spark, orders, snapshot="true", startingVersion="3"))
    snapshot = [(row["id"], "insert", 3) for row in orders.rows(3)]
    assert found == sorted([*snapshot, *_inserts(4), DELETE])


def test_the_schema_is_the_tables_and_the_change_columns(
    spark: SparkSession, orders: TableBuilder
) -> None:
    frame = _read(spark, orders)
    assert frame.schema.simpleString() == (
        "struct<id:bigint,name:string,"
        "_change_type:string,_commit_version:bigint,_commit_timestamp:timestamp>"
    )
    row = frame.where("_commit_version = 2 and id = 20").collect()[0]
    assert (row["name"], str(row["_commit_timestamp"])) == ("n0", "2024-01-01 00:00:02")


def test_columns_are_chosen_by_a_schema_of_ones_own(
    spark: SparkSession, orders: TableBuilder
) -> None:
    reader = spark.read.format("tailerd").schema("_commit_version long, name string, extra int")
    rows = reader.option("endingVersion", "0").load(str(orders.folder)).collect()
    assert sorted(tuple(row) for row in rows) == [(0, "n0", None), (0, "n1", None)]


@pytest.mark.full
def test_a_filter_keeps_files_closed_of_which_no_row_can_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder(
        tmp_path, fields=[("id", "long"), ("day", "date")], partition_by=["day"], mapping="name"
    )
    commits = [table.append([{"id": n, "day": dt.date(2024, 1, n + 1)}]) for n in range(4)]
    for commit in commits[:2]:
        (tmp_path / commit.adds[0]["add"]["path"]).unlink()
    tailerd.spark.register(spark, push_filters=True)
    try:
        second_ms = round(table.commit_path(1).stat().st_mtime * 1000)
        for where in (
            "_commit_version >= 2",
            "day > DATE'2024-01-02' and _change_type = 'insert'",
            f"_commit_timestamp > TIMESTAMP_MILLIS({second_ms})",
        ):
            found = _changes(_read(spark, table).where(where))
            assert found == [(2, "insert", 2), (3, "insert", 3)]
        assert _changes(_read(spark, table).where("day = DATE'2024-01-04'")) == [(3, "insert", 3)]
        assert type(_error(lambda: _read(spark, table).collect())) is MissingDataFileError
    finally:
        tailerd.spark.register(spark)
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.full
def test_partition_times_without_a_zone_are_what_java_takes_them_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder(
        tmp_path, fields=[("id", "long"), ("at", "timestamp")], partition_by=["at"]
    )
    texts = [
        f"{text}:00"
        for text in ("2024-03-31 02:30", "2024-10-27 02:30", "2024-07-01 00:00", "1880-05-05 05:05")
    ]
    for number, text in enumerate(texts):
        file = table.data_file(pa.table({"id": [number]}), partition={"at": text})
        table.commit(file) if number else table.create(file)
    rows = _read(spark, table, partitionTimezone="Europe/Berlin").selectExpr(
        "id", "unix_micros(at)"
    )
    instants = [
        f"unix_micros(to_utc_timestamp(TIMESTAMP'{text}Z', 'Europe/Berlin'))" for text in texts
    ]
    [java] = spark.range(1).selectExpr(*instants).collect()
    assert [row[1] for row in sorted(rows.collect())] == list(java)


@pytest.mark.full
def test_a_filter_of_one_query_takes_no_rows_from_the_next(
    spark: SparkSession, orders: TableBuilder
) -> None:
    """PySpark keeps what a query pushed: that is why nothing is pushed unless asked for."""
    frame = _read(spark, orders)
    assert frame.where("_commit_version = 2").count() == 2
    assert frame.count() == 11
    parts = [frame.where(f"_commit_version = {version}") for version in (1, 2)]
    assert parts[0].union(parts[1]).count() == 4


def test_columns_are_chosen_by_name(spark: SparkSession, orders: TableBuilder) -> None:
    frame = _read(spark, orders, columns="name", endingVersion="0")
    change = ["_change_type", "_commit_version", "_commit_timestamp"]
    assert frame.columns == ["name", *change]
    assert sorted(row["name"] for row in frame.collect()) == ["n0", "n1"]
    error = _error(lambda: _read(spark, orders, columns="name,nothing"))
    assert type(error) is UsageError
    assert "'nothing'" in str(error)


def test_rows_are_counted_where_no_column_of_the_table_is_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path)
    table.append(_rows(0))
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("status", "string")])
    table.append([{"id": 9, "name": "", "status": "new"}])
    assert _read(spark, table, columns="status").count() == 3
    changes = spark.read.format("tailerd").schema("_change_type string, _commit_version long")
    found = sorted(tuple(row) for row in changes.load(str(tmp_path)).collect())
    assert found == [("insert", 0), ("insert", 0), ("insert", 2)]


def test_changes_can_be_queried_with_sql(spark: SparkSession, orders: TableBuilder) -> None:
    _read(spark, orders).createOrReplaceTempView("order_changes")
    found = spark.sql(
        "select _change_type, count(*) from order_changes group by all order by 1"
    ).collect()
    assert [tuple(row) for row in found] == [("delete", 1), ("insert", 10)]


def test_many_files_are_read_in_several_partitions(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.create(*[table.data_file([{"id": n, "name": "x" * 100}]) for n in range(300)])
    frame = _read(spark, table)
    assert frame.select(sql.spark_partition_id()).distinct().count() > 2
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(300))


def test_the_change_data_feed_is_taken_where_a_commit_has_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    first = table.append([{"id": 1, "name": "old"}])
    after = table.data_file([{"id": 1, "name": "new"}])
    images = [
        {"id": 1, "name": "old", "_change_type": "update_preimage"},
        {"id": 1, "name": "new", "_change_type": "update_postimage"},
    ]
    table.commit(table.remove(first.adds[0]), after, table.cdc_file(images))
    found = _read(spark, table, startingVersion="1").select("name", "_change_type").collect()
    assert sorted(tuple(row) for row in found) == [
        ("new", "update_postimage"),
        ("old", "update_preimage"),
    ]
    derived = _read(spark, table, startingVersion="1", changes="files")
    assert sorted(_changes(derived)) == [(1, "delete", 1), (1, "insert", 1)]


def test_types_arrive_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(
        tmp_path,
        fields=[
            field("id", "long"),
            ("price", "decimal(12,3)"),
            ("day", "date"),
            ("seen", "timestamp"),
            ("raw", "binary"),
            ("tags", array(struct(field("k", "string"), field("n", "integer")))),
            ("more", map_of("string", array("double"))),
            ("region", "string"),
        ],
        partition_by=["region"],
    )
    seen = dt.datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=dt.UTC)
    row = {
        "id": 7,
        "price": decimal.Decimal("12.345"),
        "day": dt.date(2024, 2, 29),
        "seen": seen,
        "raw": b"\x00\xff",
        "tags": [{"k": "a", "n": 1}, None],
        "more": {"x": [1.5, None]},
        "region": "eu",
    }
    table.append([row, dict.fromkeys(row, None) | {"region": "us"}])
    frame = _read(spark, table).drop("_change_type", "_commit_version", "_commit_timestamp")
    full, empty = sorted(frame.collect(), key=lambda each: each.region)
    got = full.asDict(recursive=True)
    assert got == {**row, "raw": bytearray(b"\x00\xff"), "seen": seen.replace(tzinfo=None)}
    assert empty.asDict() == {**dict.fromkeys(row, None), "region": "us"}


def test_a_column_that_was_added_is_null_before(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("note", "string")])
    table.append([{"id": 2, "name": "b", "note": "new"}])
    rows = _read(spark, table).select("id", "note").collect()
    assert sorted(tuple(row) for row in rows) == [(1, None), (2, "new")]
    assert "note" not in _read(spark, table, endingVersion="0").columns


def test_a_renamed_column_in_the_range_is_refused_and_each_side_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TableBuilder(tmp_path, mapping="name")
    table.append([{"id": 1, "name": "a"}])
    table.rename_column("name", "label")
    table.append([{"id": 2, "label": "b"}])
    error = _error(lambda: _read(spark, table).collect())
    assert type(error) is SchemaChangedError
    assert "Version 0 has another schema" in str(error)
    assert "column name" in str(error)
    assert _read(spark, table, endingVersion="0").select("name").collect()[0][0] == "a"
    assert _read(spark, table, startingVersion="1").select("label").collect()[0][0] == "b"


@pytest.mark.parametrize(
    ("options", "kind", "reported"),
    [
        ({"startingVersoin": "1"}, UsageError, "did you mean startingVersion?"),
        ({"startingVersion": "1", "startingTimestamp": "2024-01-01"}, UsageError, "contradict"),
        ({"startingVersion": "17"}, MissingVersionError, "17"),
        ({"startingTimestamp": "2031-01-01"}, UsageError, "2031"),
        ({"startingVersion": "1", "changes": "cdf"}, ChangeFeedDisabledError, "version 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_served_is_one_clear_error(
    spark: SparkSession,
    orders: TableBuilder,
    options: dict[str, str],
    kind: type[TailerdError],
    reported: str,
) -> None:
    error = _error(lambda: _read(spark, orders, **options).collect())
    assert type(error) is kind
    assert reported.casefold() in str(error).casefold()
    assert "\n" not in str(error)


def test_a_location_without_a_table_is_named(spark: SparkSession, tmp_path: Path) -> None:
    error = _error(lambda: spark.read.format("tailerd").load(str(tmp_path / "nothing")))
    assert type(error) is NotATableError
    assert "nothing" in str(error)


@pytest.mark.full
def test_a_missing_data_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    commit = table.append([{"id": 1, "name": "a"}])
    name = commit.adds[0]["add"]["path"]
    (tmp_path / name).unlink()
    error = _error(lambda: _read(spark, table).collect())
    assert type(error) is MissingDataFileError
    assert name in str(error)


def _error(work: Any) -> TailerdError:
    with pytest.raises(PySparkException) as raised:
        work()
    return parse_error(str(raised.value))


@pytest.mark.parametrize("identity", ["", "id"])
def test_a_commit_without_a_feed_gives_the_rows_that_changed(
    spark: SparkSession, tmp_path: Path, identity: str
) -> None:
    table = TableBuilder(tmp_path)
    rows = [{"id": number, "name": "a"} for number in range(100)]
    [add] = table.append(rows).adds
    table.commit(
        table.remove(add), table.data_file([{**rows[7], "name": "b"}, *rows[:7], *rows[8:]])
    )
    options = {"identity": identity} if identity else {}
    found = _read(spark, table, startingVersion="1", **options)
    kinds = ("update_postimage", "update_preimage") if identity else ("delete", "insert")
    assert _changes(found) == [(7, kind, 1) for kind in kinds]
