"""Rows 35, 36, 43 to 46 of the corners: columns as each commit's own schema has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import TableError, UnreadableDataFileError, UsageError
from tailerd.formats.base import OpenRequest
from tailerd.transforms.options import make_view
from tests.cli.commands import Commands
from tests.tables import delta_schema
from tests.tables.builder import CDF, TableBuilder
from tests.tables.delta_schema import field
from tests.tables.feed import COMMIT_BY_COMMIT, changes, reported
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


MODES = pytest.mark.parametrize("mode", ["name", "id"])


def columns_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hidden = {"_change_type", "_commit_version", "_commit_timestamp", "change_source"}
    return [{name: row[name] for name in row if name not in hidden} for row in rows]


@MODES
async def test_row_35_each_commit_has_the_names_of_its_time(tmp_path: Path, mode: Any) -> None:
    table = TableBuilder(tmp_path, mapping=mode)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.rename_column("name", "title")
    table.append([{"id": 2, "title": "b"}])
    table.commit(table.remove(add))
    assert columns_of(await changes(tmp_path)) == [
        {"id": 1, "name": "a"},
        {"id": 2, "title": "b"},
        {"id": 1, "title": "a"},
    ]
    assert {row["title"] for row in await changes(tmp_path, "snapshot")} == {"b"}


@MODES
async def test_row_35_a_cycle_of_renames_swaps_no_data(tmp_path: Path, mode: Any) -> None:
    table = TableBuilder(tmp_path, fields=[("a", "long"), ("b", "long")], mapping=mode)
    table.append([{"a": 1, "b": 2}])
    table.rename_column("a", "c")
    table.rename_column("b", "a")
    table.rename_column("c", "b")
    table.append([{"a": 20, "b": 10}])
    found = columns_of(await changes(tmp_path, "snapshot"))
    assert sorted(found, key=lambda row: row["b"]) == [{"b": 1, "a": 2}, {"b": 10, "a": 20}]


@MODES
async def test_row_35_a_column_dropped_and_added_again_does_not_show_its_old_values(
    tmp_path: Path, mode: Any
) -> None:
    table = TableBuilder(tmp_path, mapping=mode)
    table.append([{"id": 1, "name": "old"}])
    table.change_metadata(fields=[table.field_named("id")])
    table.append([{"id": 2}])
    table.change_metadata(fields=[table.field_named("id"), field("name", "string")])
    table.append([{"id": 3, "name": "new"}])
    assert columns_of(await changes(tmp_path)) == [
        {"id": 1, "name": "old"},
        {"id": 2},
        {"id": 3, "name": "new"},
    ]
    found = {row["id"]: row["name"] for row in await changes(tmp_path, "snapshot")}
    assert found == {1: None, 2: None, 3: "new"}


NESTED: list[tuple[str, delta_schema.DeltaType]] = [
    ("id", "long"),
    ("s", delta_schema.struct(field("x", "long"), field("y", "string"))),
    ("l", delta_schema.array(delta_schema.struct(field("x", "long"), field("y", "string")))),
    ("m", delta_schema.map_of("string", delta_schema.struct(field("x", "long")))),
]


@MODES
async def test_row_35_renames_reach_into_structs_lists_and_maps(tmp_path: Path, mode: Any) -> None:
    table = TableBuilder(tmp_path, fields=NESTED, mapping=mode)
    row = {"id": 1, "s": {"x": 2, "y": "b"}, "l": [{"x": 3, "y": "c"}, None], "m": {"k": {"x": 4}}}
    table.append([row, {"id": 2, "s": None, "l": None, "m": None}])
    table.field_named("s")["type"]["fields"][0]["name"] = "y2"
    table.field_named("l")["type"]["elementType"]["fields"][0]["name"] = "z"
    table.field_named("m")["type"]["valueType"]["fields"][0]["name"] = "w"
    table.commit(table.metadata())
    found = columns_of(await changes(tmp_path, "snapshot"))
    assert found == [
        {
            "id": 1,
            "s": {"y2": 2, "y": "b"},
            "l": [{"z": 3, "y": "c"}, None],
            "m": [("k", {"w": 4})],
        },
        {"id": 2, "s": None, "l": None, "m": None},
    ]


@MODES
async def test_row_35_a_field_added_inside_a_struct_is_null_in_old_files(
    tmp_path: Path, mode: Any
) -> None:
    table = TableBuilder(tmp_path, fields=NESTED, mapping=mode)
    table.append([{"id": 1, "s": {"x": 2, "y": "b"}, "l": [{"x": 3, "y": "c"}], "m": {}}])
    table.field_named("s")["type"]["fields"].append(field("new", "double"))
    table.field_named("l")["type"]["elementType"]["fields"].insert(0, field("new", "date"))
    table.change_metadata(fields=table.fields)
    [found] = columns_of(await changes(tmp_path, "snapshot"))
    assert found["s"] == {"x": 2, "y": "b", "new": None}
    assert found["l"] == [{"new": None, "x": 3, "y": "c"}]


async def test_row_35_by_id_a_file_without_field_ids_is_refused_and_not_read_as_null(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, mapping="id")
    plain = pa.table({"col-0001": pa.array([1]), "col-0002": ["a"]})
    table.create(table.data_file(plain, partition={}))
    with pytest.raises(UnreadableDataFileError, match="no field ids"):
        await changes(tmp_path)


async def test_row_36_after_an_upgrade_to_mapping_old_files_are_read_by_their_old_names(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    upgraded = TableBuilder(tmp_path, mapping="none")
    table.mapping = "name"
    table.properties["delta.columnMapping.mode"] = "name"
    delta_schema.assign_mapping(table.fields, iter(range(1, 9)), keep_names=True)
    table.commit(upgraded.protocol(minReaderVersion=2, minWriterVersion=5), table.metadata())
    table.rename_column("name", "title")
    table.append([{"id": 2, "title": "b"}])
    assert columns_of(await changes(tmp_path)) == [
        {"id": 1, "name": "a"},
        {"id": 2, "title": "b"},
    ]
    assert {row["title"] for row in await changes(tmp_path, "snapshot")} == {"a", "b"}


async def test_row_36_the_mapping_property_counts_whatever_the_protocol_says(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    table.properties["delta.columnMapping.mode"] = "name"
    delta_schema.assign_mapping(table.fields, iter(range(1, 9)), keep_names=False)
    by_physical_name = pa.table({"col-0001": pa.array([1]), "col-0002": ["a"]})
    table.create(table.data_file(by_physical_name, partition={}))
    assert columns_of(await changes(tmp_path)) == [{"id": 1, "name": "a"}]


async def test_a_column_a_file_lacks_is_null(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("more", "double")])
    table.append([{"id": 2, "name": "b", "more": 0.5}])
    assert columns_of(await changes(tmp_path)) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b", "more": 0.5},
    ]
    found = {row["id"]: row["more"] for row in await changes(tmp_path, "snapshot")}
    assert found == {1: None, 2: 0.5}


def test_chosen_columns_may_be_younger_than_the_first_commit(
    tmp_path: Path, command: Commands
) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("more", "double")])
    table.append([{"id": 2, "name": "b", "more": 0.5}])
    ran = command.tail(tmp_path, "--from", 0, "--columns", "more,id")
    assert (ran.status, ran.errors) == (0, "")
    names = ["more", "id", "_change_type", "_commit_version", "_commit_timestamp"]
    assert [list(row) for row in ran.rows] == [names, names]
    assert [(row["more"], row["id"]) for row in ran.rows] == [(None, 1), (0.5, 2)]


@pytest.mark.parametrize("mode", COMMIT_BY_COMMIT, ids=str)
async def test_no_row_is_lost_where_none_of_the_chosen_columns_exists(
    tmp_path: Path, mode: ChangeMode
) -> None:
    table = TableBuilder(tmp_path, properties=CDF, reader_features=["deletionVectors"])
    [add] = table.append([{"id": number, "name": ""} for number in range(4)]).adds
    table.delete_rows(add, [1, 3])
    gone = table.cdc_file([{"id": 0, "name": "", "_change_type": "delete"}])
    table.commit(table.remove(add), gone)
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("more", "double")])
    table.append([{"id": 5, "name": "", "more": 0.5}])

    whole, chosen = [await changes(tmp_path, mode=mode, columns=c) for c in (None, ["more"])]

    assert reported(chosen) == reported(whole)
    assert [row["more"] for row in chosen if "more" in row] == [0.5]
    later = await changes(tmp_path, "2", mode=mode, columns=["more"])
    assert reported(later) == reported(whole)[-len(later) :]


async def test_a_snapshot_without_any_chosen_column_has_its_rows(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    assert len(await changes(tmp_path, "snapshot", columns=[])) == 2


async def test_a_table_with_nothing_but_void_columns_has_rows(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("nothing", "void")])
    table.create(table.data_file(pa.table({"nothing": pa.nulls(3)}), partition={}))
    assert reported(await changes(tmp_path)) == [(0, "insert")] * 3


async def test_a_column_the_table_never_had_is_refused(tmp_path: Path) -> None:
    TableBuilder(tmp_path).append([{"id": 1, "name": "a"}])
    request = OpenRequest(view=make_view(columns=["Name"]))
    with pytest.raises(UsageError, match=r"'Name', which is not there\. Did you mean 'name'"):
        await open_delta(str(tmp_path), request)


async def test_columns_of_files_may_differ_in_order_and_case(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    file = pa.table({"NAME": ["a"], "extra": [1.0], "Id": pa.array([1])})
    table.create(table.data_file(file, partition={}))
    assert columns_of(await changes(tmp_path)) == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize(
    "values",
    [["text"], [True], [1.5], [[1]], [{"x": 1}], [b"1"]],
    ids=lambda values: type(values[0]).__name__,
)
async def test_a_column_retyped_in_a_file_is_an_error_that_names_it(
    tmp_path: Path, values: list[object]
) -> None:
    table = TableBuilder(tmp_path)
    table.create(table.data_file(pa.table({"id": values, "name": ["a"]}), partition={}))
    with pytest.raises(UnreadableDataFileError, match=r"part-00000.*column id is .* and int64"):
        await changes(tmp_path)


async def test_a_number_too_large_for_the_column_is_an_error(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "short")])
    table.create(table.data_file(pa.table({"id": [1, 70_000]}), partition={}))
    with pytest.raises(UnreadableDataFileError, match="column id is int64"):
        await changes(tmp_path)


async def test_row_43_metadata_that_changes_no_column_changes_no_row(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    for mark in range(3):
        table.field_named("id")["metadata"] = {"delta.identity.highWaterMark": mark}
        table.change_metadata(properties={"user.note": str(mark)})
        table.append([{"id": mark, "name": "b"}])
    rows = await changes(tmp_path)
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 4


async def test_row_44_commits_of_metadata_and_protocol_only_move_the_offset_and_count(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    table.change_metadata(properties=CDF)
    table.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}})
    table.commit(table.metadata(), table.protocol(minWriterVersion=4))
    table.commit({"txn": {"appId": "a", "version": 1}})
    row = {"id": 2, "name": "b"}
    table.commit(table.cdc_file([{**row, "_change_type": "delete"}]))
    assert reported(await changes(tmp_path), "id") == [(0, "insert", 1), (5, "delete", 2)]


@pytest.mark.parametrize("name", ["_change_type", "_commit_version", "_commit_timestamp"])
async def test_row_45_a_column_named_like_a_change_column_is_refused_unless_left_out(
    tmp_path: Path, name: str
) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long"), (name, "string")])
    table.append([{"id": 1, name: "mine"}])
    with pytest.raises(TableError, match=f"column {name}.*change rows"):
        await changes(tmp_path)
    rows = await changes(tmp_path, columns=["id"])
    assert reported(rows, "id") == [(0, "insert", 1)]


async def test_row_46_a_commit_needs_no_commit_info(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.append([{"id": 1, "name": "a"}], commit_info=False).adds
    table.commit(table.remove(add), commit_info=False)
    for odd in ({"operation": 5, "operationMetrics": []}, {"operationMetrics": None}, {}):
        table.commit({"commitInfo": odd}, commit_info=False)
    assert reported(await changes(tmp_path), "id") == [(0, "insert", 1), (1, "delete", 1)]


@pytest.mark.attack
@pytest.mark.parametrize("columns", [None, ["id", "A"]])
async def test_a_column_in_another_case_than_one_added_later_is_null(
    tmp_path: Path, columns: list[str] | None
) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long"), ("a", "string")])
    table.append([{"id": 1, "a": "old"}])
    table.change_metadata(fields=[field("id", "long"), field("a", "string"), field("A", "string")])
    [row] = await changes(tmp_path, "snapshot", columns=columns)
    assert (row["A"], row.get("a", "old")) == (None, "old")


@pytest.mark.attack
async def test_a_file_with_several_columns_for_a_name_is_refused(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("Id", "long")])
    table.create(table.data_file(pa.table({"ID": [1], "id": [9]}), partition={}, stats=False))
    with pytest.raises(UnreadableDataFileError, match=r"could be 'Id'.*'ID', 'id'"):
        await changes(tmp_path)
