"""Rows 1, 2, 11, 12, 15 of the corners: which files of a commit hold its changes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import ChangeFeedDisabledError
from tests.cli.commands import Commands
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import changes, reported

pytestmark = pytest.mark.attack


ROW = {"id": 1, "name": "a"}


async def test_row_01_a_commit_with_change_files_is_read_from_them_alone(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    [add] = table.append([ROW, {"id": 2, "name": "b"}]).adds
    images = [
        {"id": 2, "name": "b", "_change_type": "update_preimage"},
        {"id": 2, "name": "B", "_change_type": "update_postimage"},
    ]
    table.commit(
        table.remove(add),
        table.data_file([ROW, {"id": 2, "name": "B"}]),
        table.cdc_file(images),
    )
    for mode in (ChangeMode.AUTO, ChangeMode.CDF):
        rows = await changes(tmp_path, "1", mode=mode)
        assert reported(rows, "id", "name") == [
            (1, "update_postimage", 2, "B"),
            (1, "update_preimage", 2, "b"),
        ]
        assert {row["change_source"] for row in rows} == {"cdc"}
    rows = await changes(tmp_path, "1", mode=ChangeMode.FILES)
    assert reported(rows, "id", "name") == [
        (1, "delete", 1, "a"),
        (1, "delete", 2, "b"),
        (1, "insert", 1, "a"),
        (1, "insert", 2, "B"),
    ]


async def test_row_02_a_change_file_that_is_also_a_data_file_is_read_once_and_without_its_column(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.create()
    rows = pa.table({"id": [7], "name": ["x"], "_change_type": ["insert"]})
    add = table.data_file(rows, partition={})
    body = add["add"]
    cdc = {"cdc": {name: body[name] for name in ("path", "partitionValues", "size")}}
    cdc["cdc"]["dataChange"] = False
    table.commit(add, cdc)
    for mode in ChangeMode:
        found = await changes(tmp_path, "1", mode=mode)
        assert reported(found, "id", "name") == [(1, "insert", 7, "x")]
    [row] = await changes(tmp_path, "snapshot")
    assert list(row) == [
        *("id", "name", "_change_type", "_commit_version", "_commit_timestamp", "change_source")
    ]
    assert row["_change_type"] == "insert"


@pytest.mark.parametrize("stray", ["insert", "update_preimage", "nonsense"])
async def test_row_02_a_stray_change_type_column_of_a_data_file_says_nothing(
    tmp_path: Path, stray: str
) -> None:
    table = TableBuilder(tmp_path)
    file = pa.table({"_change_type": [stray], "id": [7], "name": ["x"]})
    table.create(table.data_file(file, partition={}))
    [add] = table.commit(table.data_file(file, partition={})).adds
    table.commit(table.remove(add))
    assert reported(await changes(tmp_path, mode=ChangeMode.FILES), "id") == [
        (0, "insert", 7),
        (1, "insert", 7),
        (2, "delete", 7),
    ]


def no_op_merge(table: TableBuilder, **metrics: str) -> None:
    [add] = table.append([ROW]).adds
    table.commit(table.remove(add), table.data_file([ROW]), operation="MERGE", metrics=metrics)


NOTHING = {
    "numTargetRowsInserted": "0",
    "numTargetRowsUpdated": "0",
    "numTargetRowsDeleted": "0",
}


@pytest.mark.parametrize("properties", [{}, CDF], ids=["no feed", "feed"])
async def test_row_11_a_merge_that_changed_no_row_gives_none(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    table = TableBuilder(tmp_path, properties=properties)
    no_op_merge(table, **NOTHING)
    assert await changes(tmp_path, "1") == []


@pytest.mark.parametrize("lacking", NOTHING)
async def test_row_11_without_all_three_counts_a_merge_is_believed_to_have_changed_rows(
    tmp_path: Path, lacking: str
) -> None:
    table = TableBuilder(tmp_path)
    no_op_merge(table, **{name: "0" for name in NOTHING if name != lacking})
    assert await changes(tmp_path, "1") == []
    raw = await changes(tmp_path, "1", mode=ChangeMode.FILES)
    assert reported(raw, "id") == [(1, "delete", 1), (1, "insert", 1)]


@pytest.mark.parametrize("nonzero", NOTHING)
async def test_row_11_a_merge_that_changed_a_row_gives_its_rows(
    tmp_path: Path, nonzero: str
) -> None:
    table = TableBuilder(tmp_path)
    no_op_merge(table, **{**NOTHING, nonzero: "1"})
    assert len(await changes(tmp_path, "1", mode=ChangeMode.FILES)) == 2
    assert await changes(tmp_path, "1") == []


@pytest.mark.parametrize(("mode", "kind"), [(ChangeMode.AUTO, "rows"), (ChangeMode.CDF, "files")])
async def test_row_12_with_the_feed_but_without_change_files_adds_and_removes_tell_the_changes(
    tmp_path: Path, mode: ChangeMode, kind: str
) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    [add] = table.append([ROW]).adds
    table.commit(table.data_file([{"id": 2, "name": "b"}]), table.remove(add))
    rows = await changes(tmp_path, mode=mode)
    assert reported(rows, "id") == [(0, "insert", 1), (1, "delete", 1), (1, "insert", 2)]
    assert [row["change_source"] for row in rows] == ["files", kind, kind]


def switched(folder: Path) -> TableBuilder:
    """A table whose feed is on at versions 2 and 3 only; an insert at 1, 3 and 5."""
    table = TableBuilder(folder)
    table.create()
    table.append([{"id": 1, "name": "a"}])
    table.change_metadata(properties=CDF)
    row = {"id": 3, "name": "c"}
    table.commit(table.data_file([row]), table.cdc_file([{**row, "_change_type": "insert"}]))
    table.change_metadata(properties={"delta.enableChangeDataFeed": "false"})
    table.append([{"id": 5, "name": "e"}])
    return table


async def test_row_15_auto_follows_the_feed_as_it_is_switched_on_and_off(tmp_path: Path) -> None:
    switched(tmp_path)
    rows = await changes(tmp_path)
    assert [(row["_commit_version"], row["id"], row["change_source"]) for row in rows] == [
        (1, 1, "files"),
        (3, 3, "cdc"),
        (5, 5, "files"),
    ]
    rows = await changes(tmp_path, mode=ChangeMode.FILES)
    assert {row["change_source"] for row in rows} == {"files"}
    assert reported(rows, "id") == [(1, "insert", 1), (3, "insert", 3), (5, "insert", 5)]


@pytest.mark.parametrize("start", [0, 1, 4, 5])
async def test_row_15_cdf_refuses_to_start_where_the_feed_is_off(
    tmp_path: Path, start: int
) -> None:
    switched(tmp_path)
    with pytest.raises(ChangeFeedDisabledError, match=f"Version {start} "):
        await changes(tmp_path, str(start), mode=ChangeMode.CDF)


def test_row_15_cdf_gives_what_the_feed_has_and_names_the_version_where_it_ends(
    tmp_path: Path, command: Commands
) -> None:
    switched(tmp_path)
    ran = command.tail(tmp_path, "--from", 2, "--changes", "cdf")
    assert [row["id"] for row in ran.rows] == [3]
    assert ran.status == 3
    assert ran.errors.startswith("error[change_feed_disabled]: Version 4 has no change data feed")
    ran = command.tail(tmp_path, "--from", 2, "--to", 3, "--changes", "cdf")
    assert (ran.status, [row["id"] for row in ran.rows]) == (0, [3])
