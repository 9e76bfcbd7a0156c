"""Rows 39 to 41 of the corners: partition values and the paths of data files."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import CorruptLogError, PathOutsideTableError, TableError
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder
from tests.tables.feed import changes, reported
from tests.tables.naive_log import Action

pytestmark = pytest.mark.attack


UTC = datetime.UTC


def partitioned(folder: Path, kind: str, text: str | None) -> TableBuilder:
    """A table with one row in the partition `p` = `text`."""
    table = TableBuilder(folder, fields=[("id", "long"), ("p", kind)], partition_by=["p"])
    file = pa.table({"id": pa.array([1])})
    table.create(table.data_file(file, path="a.parquet", partition={"p": text}))
    return table


VALUES: list[tuple[str, str, object]] = [
    ("string", "a/b %20 =ü", "a/b %20 =ü"),
    ("string", "__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__"),
    ("byte", "-128", -128),
    ("short", "32767", 32767),
    ("integer", "-2147483648", -(2**31)),
    ("long", "9223372036854775807", 2**63 - 1),
    ("float", "1.5", 1.5),
    ("double", "1.0E-300", 1e-300),
    ("double", "Infinity", math.inf),
    ("double", "-Infinity", -math.inf),
    ("boolean", "true", True),
    ("boolean", "false", False),
    ("decimal(10,2)", "-12.30", decimal.Decimal("-12.30")),
    ("decimal(38,0)", "9" * 38, decimal.Decimal("9" * 38)),
    ("decimal(10,2)", "1E+2", decimal.Decimal("100.00")),
    ("date", "2024-02-29", datetime.date(2024, 2, 29)),
    ("date", "0001-01-01", datetime.date(1, 1, 1)),
    ("binary", "\u0001\u0002", b"\x01\x02"),
    ("timestamp", "2024-02-29 12:34:56", datetime.datetime(2024, 2, 29, 12, 34, 56, tzinfo=UTC)),
    (
        "timestamp",
        "2024-02-29 12:34:56.123456",
        datetime.datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=UTC),
    ),
    (
        "timestamp",
        "2024-02-29T12:34:56.123456Z",
        datetime.datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=UTC),
    ),
    (
        "timestamp_ntz",
        "1969-12-31 23:59:59.999999",
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    ),
]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
async def test_row_39_a_partition_value_of_every_type_is_read(
    tmp_path: Path, kind: str, text: str, value: object
) -> None:
    table = partitioned(tmp_path, kind, text)
    [add] = table.state().adds.values()
    table.commit(table.remove({"add": add}))
    for start in ("0", "1"):
        for row in await changes(tmp_path, start):
            assert row["p"] == value


@pytest.mark.parametrize("start", ["0", "snapshot"])
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("timestamp", "2024-10-27 02:30:00", datetime.datetime(2024, 10, 27, 0, 30, tzinfo=UTC)),
        ("timestamp", "2024-10-27T02:30:00Z", datetime.datetime(2024, 10, 27, 2, 30, tzinfo=UTC)),
        ("timestamp", "", None),
        ("timestamp_ntz", "2024-10-27 02:30:00", datetime.datetime(2024, 10, 27, 2, 30)),
        ("string", "2024-10-27 02:30:00", "2024-10-27 02:30:00"),
    ],
)
async def test_row_39_a_timestamp_without_a_zone_is_in_the_zone_that_is_set(
    tmp_path: Path, kind: str, text: str, value: object, start: str
) -> None:
    table = partitioned(tmp_path, kind, text)
    [add] = table.state().adds.values()
    if start == "0":
        table.commit(table.remove({"add": add}))
    rows = await changes(tmp_path, start, zone="Europe/Berlin", restarts=True)
    assert [row["p"] for row in rows] == [value] * (2 if start == "0" else 1)


def test_row_39_the_command_takes_a_zone_and_warns_once_where_it_is_not_told(
    tmp_path: Path, command: Commands
) -> None:
    table = partitioned(tmp_path, "timestamp", "2024-07-01 12:00:00")
    table.commit(table.data_file(pa.table({"id": [2]}), partition={"p": "2024-07-02 12:00:00"}))
    ran = command.tail(tmp_path, "--from", 0, "--partition-timezone", "Europe/Berlin")
    assert (ran.status, ran.errors) == (0, "")
    assert [row["p"] for row in ran.rows] == [f"2024-07-0{n}T10:00:00.000000Z" for n in (1, 2)]
    ran = command.tail(tmp_path, "--from", 0)
    assert [row["p"] for row in ran.rows] == [f"2024-07-0{n}T12:00:00.000000Z" for n in (1, 2)]
    assert ran.errors.count("warning[zone_assumed]: ") == 1
    assert "--partition-timezone" in ran.errors
    ran = command.tail(tmp_path, "--from", 0, "--partition-timezone", "Berlin")
    assert (ran.status, ran.output) == (2, "")
    assert "--partition-timezone is 'Berlin', but" in ran.errors
    assert "such as Europe/Berlin" in ran.errors


async def test_row_39_a_partition_value_that_is_no_number_is_not_a_number(tmp_path: Path) -> None:
    partitioned(tmp_path, "double", "NaN")
    [row] = await changes(tmp_path)
    assert math.isnan(row["p"])


KINDS = ["string", "long", "double", "boolean", "decimal(5,1)", "date", "timestamp", "binary"]


@pytest.mark.parametrize("kind", KINDS)
async def test_row_39_an_absent_value_is_null(tmp_path: Path, kind: str) -> None:
    partitioned(tmp_path, kind, None)
    assert [row["p"] for row in await changes(tmp_path)] == [None]


@pytest.mark.parametrize("kind", KINDS)
async def test_row_39_an_empty_value_is_null_but_for_texts_and_bytes(
    tmp_path: Path, kind: str
) -> None:
    partitioned(tmp_path, kind, "")
    expected = {"string": "", "binary": b""}.get(kind)
    assert [row["p"] for row in await changes(tmp_path)] == [expected]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "one"),
        ("byte", "128"),
        ("boolean", "maybe"),
        ("date", "2024-02-30"),
        ("timestamp", "2024-02-29 25:00:00"),
        ("decimal(5,1)", "99999.9"),
        ("decimal(5,1)", "abc"),
    ],
)
async def test_row_39_a_value_that_does_not_fit_is_an_error_that_names_it(
    tmp_path: Path, kind: str, text: str
) -> None:
    partitioned(tmp_path, kind, text)
    with pytest.raises(CorruptLogError, match=f"partition value '{text}' of column p"):
        await changes(tmp_path)


def bare_remove(table: TableBuilder, add: Action) -> Action:
    """Return a `remove` as old writers leave it, without `extendedFileMetadata`."""
    remove = table.remove(add)
    for name in ("partitionValues", "size", "extendedFileMetadata"):
        del remove["remove"][name]
    return remove


@pytest.mark.parametrize("mode", [ChangeMode.AUTO, ChangeMode.FILES])
async def test_row_39_a_remove_that_does_not_say_its_partition_has_that_of_its_add(
    tmp_path: Path, mode: ChangeMode
) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long"), ("p", "string")], partition_by=["p"])
    adds = table.append([{"id": 1, "p": "x"}, {"id": 2, "p": "x"}, {"id": 3, "p": None}]).adds
    table.append([{"id": 9, "p": "x"}])
    table.commit(*(bare_remove(table, add) for add in adds), table.data_file([{"id": 2, "p": "x"}]))
    deleted = [(1, "x"), (2, "x"), (3, None)]
    expected = [(2, "delete", *row) for row in deleted if mode is ChangeMode.FILES or row[0] != 2]
    found = reported(await changes(tmp_path, "2", mode=mode), "id", "p")
    assert [row for row in found if row[1] == "delete"] == expected
    assert len(found) == len(expected) + (mode is ChangeMode.FILES)


async def test_row_39_a_remove_that_does_not_say_its_partition_invents_no_values(
    tmp_path: Path,
) -> None:
    table = partitioned(tmp_path, "string", "x")
    [add] = table.state().adds.values()
    table.commit(bare_remove(table, {"add": add}))
    table.checkpoint(1)
    # The version before cannot be rebuilt any more.
    table.commit_path(0).unlink()
    with pytest.raises(TableError, match=r"Version 1 removes .* without its partition values"):
        await changes(tmp_path, "1")
    assert reported(await changes(tmp_path, "1", columns=["id"]), "id") == [(1, "delete", 1)]


async def test_a_remove_whose_partition_values_are_all_null_may_have_none_in_its_map(
    tmp_path: Path,
) -> None:
    """Delta Spark leaves nulls out of the map of a `remove`."""
    table = TableBuilder(
        tmp_path,
        fields=[("id", "long"), ("p", "string"), ("q", "date")],
        partition_by=["p", "q"],
        mapping="name",
    )
    [add] = table.append([{"id": 1, "p": None, "q": None}]).adds
    remove = table.remove(add)
    remove["remove"]["partitionValues"] = {}
    table.commit(remove)
    [row] = await changes(tmp_path, "1")
    assert (row["id"], row["p"], row["q"], row["_change_type"]) == (1, None, None, "delete")


async def test_a_remove_without_extended_metadata_is_enough_in_a_table_without_partitions(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    path = add["add"]["path"]
    table.commit({"remove": {"path": path, "dataChange": True, "deletionTimestamp": 5}})
    assert reported(await changes(tmp_path, "1"), "id") == [(1, "delete", 1)]


NAMES = {
    "plain": "a.parquet",
    "blank": "a b.parquet",
    "percent": "100%25.parquet",
    "percent twenty": "a%20b.parquet",
    "unicode": "ü☃.parquet",
    "reserved": "x#y?z=1;[2]+,&.parquet",
    "colon": "p=12:30:00/a.parquet",
    "folder": "p=a%2Fb/c d/e.parquet",
}


@pytest.mark.parametrize("root", ["t", "a b%20c#ü?[1]"])
@pytest.mark.parametrize("name", NAMES)
async def test_row_40_a_path_is_decoded_exactly_once_below_any_root(
    tmp_path: Path, name: str, root: str
) -> None:
    table = TableBuilder(tmp_path / root)
    [add] = table.create(table.data_file([{"id": 1, "name": "a"}], path=NAMES[name])).adds
    assert (tmp_path / root / NAMES[name]).exists()
    table.commit(table.remove(add))
    assert reported(await changes(tmp_path / root), "id") == [(0, "insert", 1), (1, "delete", 1)]
    url = f"file://{quote(str(tmp_path / root))}"
    assert reported(await changes(url), "id") == [(0, "insert", 1), (1, "delete", 1)]


async def test_row_40_text_outside_ascii_may_stand_in_a_path_as_it_is(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    add = table.data_file([{"id": 1, "name": "a"}], path="ü/☃.parquet")
    add["add"]["path"] = "ü/☃.parquet"
    table.create(add)
    assert len(await changes(tmp_path)) == 1


@pytest.mark.parametrize("form", ["path", "file:/", "file:///"])
async def test_row_40_an_absolute_path_into_the_table_is_served(tmp_path: Path, form: str) -> None:
    table = TableBuilder(tmp_path / "a b")
    add = table.data_file([{"id": 1, "name": "a"}])
    location = quote(f"{tmp_path}/a b/{add['add']['path']}")
    prefix = {"path": "", "file:/": "file:", "file:///": "file://"}[form]
    add["add"]["path"] = prefix + location
    table.create(add)
    assert len(await changes(tmp_path / "a b")) == 1
    assert len(await changes(tmp_path / "a b", "snapshot")) == 1


OUTSIDE = [
    "file:///etc/passwd",
    "file:/etc/passwd",
    "/etc/passwd",
    "../other/a.parquet",
    "%2e%2e/other/a.parquet",
    "a/../../other/a.parquet",
    "..%2Fother/a.parquet",
    "file:///{root}/../other/a.parquet",
    "s3://bucket/a.parquet",
    "http://127.0.0.1/a.parquet",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("start", ["0", "snapshot"])
async def test_row_40_a_path_that_leaves_the_table_is_refused(
    tmp_path: Path, path: str, start: str
) -> None:
    other = TableBuilder(tmp_path / "other")
    other.create(other.data_file([{"id": 1, "name": "secret"}], path="a.parquet"))
    table = TableBuilder(tmp_path / "table")
    add = table.data_file([{"id": 1, "name": "a"}])
    add["add"]["path"] = path.replace("/{root}", f"{tmp_path}/table")
    table.create(add)
    with pytest.raises(PathOutsideTableError, match="outside the table"):
        await changes(tmp_path / "table", start)


def test_row_40_the_command_serves_a_shallow_clone_from_an_allowed_path_only(
    tmp_path: Path, command: Commands
) -> None:
    other = TableBuilder(tmp_path / "other")
    other.create(other.data_file([{"id": 1, "name": "a"}], path="a b.parquet"))
    clone = TableBuilder(tmp_path / "clone")
    add = other.data_file([{"id": 1, "name": "a"}], path="a b.parquet")
    add["add"]["path"] = f"{other.folder.as_uri()}/a%20b.parquet"
    clone.create(add)
    ran = command.tail(clone.folder, "--from", 0)
    assert (ran.status, ran.output) == (3, "")
    assert ran.errors.startswith("error[path_outside_table]: ")
    assert "--allow-path" in ran.errors
    assert f"for example {other.folder}" in ran.errors
    for location in (other.folder, f"{other.folder}/", other.folder.as_uri()):
        ran = command.tail(clone.folder, "--from", 0, "--allow-path", location)
        assert (ran.status, len(ran.rows)) == (0, 1), ran.errors
    # A location whose name only begins the same is another location.
    ran = command.tail(clone.folder, "--from", 0, "--allow-path", str(other.folder)[:-1])
    assert ran.status == 3


async def test_row_41_partition_columns_in_the_file_do_not_count(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long"), ("p", "string")], partition_by=["p"])
    file = pa.table({"id": pa.array([1]), "p": ["from the file"]})
    table.create(table.data_file(file, path="p=from the path/a.parquet", partition={"p": "log"}))
    assert [row["p"] for row in await changes(tmp_path)] == ["log"]


@pytest.mark.parametrize("mode", ["name", "id"])
async def test_row_41_partition_values_are_found_by_physical_name(
    tmp_path: Path, mode: Any
) -> None:
    fields = [("id", "long"), ("p", "string")]
    table = TableBuilder(tmp_path, fields=fields, partition_by=["p"], mapping=mode)
    [add] = table.append([{"id": 1, "p": "x"}]).adds
    assert add["add"]["partitionValues"] == {"col-0002": "x"}
    table.field_named("p")["name"] = "q"
    table.partition_by = ["q"]
    table.commit(table.metadata(), operation="RENAME COLUMN")
    table.append([{"id": 2, "q": "y"}])
    assert [row.get("p") or row.get("q") for row in await changes(tmp_path)] == ["x", "y"]
    assert {row["q"] for row in await changes(tmp_path, "snapshot")} == {"x", "y"}


async def test_row_41_a_column_order_with_partitions_between_is_kept(tmp_path: Path) -> None:
    fields = [("a", "long"), ("p", "string"), ("b", "long"), ("q", "long")]
    table = TableBuilder(tmp_path, fields=fields, partition_by=["q", "p"])
    table.append([{"a": 1, "p": "x", "b": 2, "q": 3}])
    [row] = await changes(tmp_path)
    assert list(row)[:4] == ["a", "p", "b", "q"]
    assert list(row.values())[:4] == [1, "x", 2, 3]
    [row] = await changes(tmp_path, columns=["p"])
    assert row["p"] == "x"
