"""Rows 13, 14, 38 of the corners: RESTORE, overwrites, REPLACE, and tables made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import ReadLimit
from tailerd.errors import NotATableError, TableRecreatedError
from tailerd.formats.base import OpenRequest
from tests.cli.commands import Commands
from tests.doubles.sim_clock import SimClock
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import (
    COMMIT_BY_COMMIT,
    EVERYTHING,
    changes,
    list_rows,
    read_batches,
    reported,
)
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


OTHER_ID = "5f1d0f6e-7a11-4e2b-9c1d-000000000002"


async def test_row_13_restore_is_the_adds_and_removes_it_commits(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    old = table.append([{"id": 1, "name": "a"}]).adds
    table.commit(table.remove(old[0]), operation="DELETE")
    new = table.append([{"id": 2, "name": "b"}]).adds
    table.commit(*old, table.remove(new[0]), operation="RESTORE")
    for mode in COMMIT_BY_COMMIT:
        rows = await changes(tmp_path, "0", mode=mode)
        assert reported(rows, "id") == [
            (0, "insert", 1),
            (1, "delete", 1),
            (2, "insert", 2),
            (3, "delete", 2),
            (3, "insert", 1),
        ]


async def test_row_14_replace_gives_removed_rows_the_schema_before_and_added_ones_that_after(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.fields = TableBuilder(tmp_path, fields=[("id", "string"), ("amount", "double")]).fields
    table.commit(
        table.metadata(),
        table.data_file([{"id": "x", "amount": 1.5}]),
        table.remove(add),
        operation="CREATE OR REPLACE TABLE AS SELECT",
    )
    rows = await changes(tmp_path, "1")
    plain = [{name: row[name] for name in row if not name.startswith("_c")} for row in rows]
    assert plain == [
        {"id": 1, "name": "a", "change_source": "files"},
        {"id": "x", "amount": 1.5, "change_source": "files"},
    ]


def test_row_14_replace_with_other_types_goes_through_the_command(
    tmp_path: Path, command: Commands
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.fields = TableBuilder(tmp_path, fields=[("id", "string")]).fields
    table.commit(table.metadata(), table.remove(add), table.data_file([{"id": "x"}]))
    for arguments in ([], ["--columns", "id"]):
        ran = command.tail(tmp_path, "--from", 0, *arguments)
        assert (ran.status, ran.errors) == (0, "")
        assert [row["id"] for row in ran.rows] == [1, 1, "x"]
    ran = command.tail(tmp_path, "--from", 0, "--columns", "name")
    assert ran.status == 2
    assert ran.errors.startswith("error[usage]: columns names 'name', which is not there.")


async def test_row_38_partition_columns_may_change_in_an_overwrite(tmp_path: Path) -> None:
    fields = [("id", "long"), ("name", "string")]
    table = TableBuilder(tmp_path, fields=fields, partition_by=["name"])
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.partition_by = ["id"]
    table.commit(table.metadata(), table.remove(add), table.data_file([{"id": 2, "name": "b"}]))
    [added] = list(table.state().adds.values())
    table.partition_by = []
    table.commit(
        table.metadata(), table.remove({"add": added}), table.data_file([{"id": 3, "name": "c"}])
    )
    assert reported(await changes(tmp_path), "id", "name") == [
        (0, "insert", 1, "a"),
        (1, "delete", 1, "a"),
        (1, "insert", 2, "b"),
        (2, "delete", 2, "b"),
        (2, "insert", 3, "c"),
    ]


@pytest.mark.parametrize(
    ("before", "commits", "is_replaced"),
    [(3, 1, False), (3, 3, False), (3, 5, False), (1, 1, True)],
)
async def test_row_14_a_table_made_anew_while_it_is_followed_is_noticed(
    tmp_path: Path, before: int, commits: int, is_replaced: bool
) -> None:
    folder = tmp_path / "orders"
    table = TableBuilder(folder)
    for number in range(before):
        table.append([{"id": number, "name": ""}])
    clock = SimClock()
    source = await open_delta(str(folder), OpenRequest(clock=clock))
    at = await source.initial_offset("0")
    at = await source.latest_offset(at, EVERYTHING)
    assert await source.latest_offset(at, EVERYTHING) == at

    shutil.rmtree(folder)
    again = TableBuilder(folder, table_id=OTHER_ID)
    for number in range(commits):
        again.append([{"id": 100 + number, "name": ""}])
    if is_replaced:
        again.commit(again.metadata(id="5f1d0f6e-7a11-4e2b-9c1d-000000000003"))

    await clock.advance(60)
    with pytest.raises(TableRecreatedError):
        await source.latest_offset(at, EVERYTHING)
    # A restart has nothing but the offset.
    reopened = await open_delta(str(folder))
    with pytest.raises(TableRecreatedError):
        await reopened.latest_offset(at, EVERYTHING)


async def test_row_14_a_table_that_vanished_is_no_table_any_longer(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    TableBuilder(folder).append([{"id": 1, "name": ""}])
    clock = SimClock()
    source = await open_delta(str(folder), OpenRequest(clock=clock))
    at = await source.initial_offset("latest")
    assert await source.latest_offset(at, EVERYTHING) == at
    shutil.rmtree(folder)
    await clock.advance(60)
    with pytest.raises(NotATableError, match="dropped"):
        await source.latest_offset(at, EVERYTHING)
    with pytest.raises(NotATableError):
        await open_delta(str(folder))


async def test_row_14_another_identity_within_one_log_is_followed(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("latest")
    table.commit(
        table.metadata(id=OTHER_ID), table.remove(add), table.data_file([{"id": 2, "name": "b"}])
    )
    table.append([{"id": 3, "name": "c"}])
    end = await source.latest_offset(at, EVERYTHING)
    assert (at.table_id, end.table_id) == (table.table_id, OTHER_ID)
    changed = [(1, "delete", 1), (1, "insert", 2), (2, "insert", 3)]
    assert reported(list_rows(await read_batches(source, at, end)), "id") == changed
    for mode in (ChangeMode.AUTO, ChangeMode.FILES):
        assert reported(await changes(tmp_path, "1", mode=mode), "id") == changed


async def test_row_14_offsets_on_both_sides_of_a_replacement_are_good_in_another_process(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    raw = ChangeMode.FILES
    at = await (await open_delta(str(tmp_path), OpenRequest(changes=raw))).initial_offset("0")
    table.commit(
        table.metadata(id=OTHER_ID), table.remove(add), table.data_file([{"id": 2, "name": "b"}])
    )
    again = "5f1d0f6e-7a11-4e2b-9c1d-000000000003"
    table.commit(table.metadata(id=again))
    found, ids = [], []
    for _ in range(4):
        # The replacing commit is given in two parts, and each part to another process.
        source = await open_delta(str(tmp_path), OpenRequest(changes=raw))
        end = await source.latest_offset(at, ReadLimit(max_files=1))
        found += reported(list_rows(await read_batches(source, at, end)), "id")
        at = end
        ids.append(at.table_id)
    assert found == [(0, "insert", 1), (1, "delete", 1), (1, "insert", 2)]
    assert ids == [table.table_id, OTHER_ID, OTHER_ID, again]


async def test_row_14_replace_keeps_the_identity_and_is_followed(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("latest")
    table.commit(table.protocol(), table.metadata(), table.remove(add), operation="REPLACE TABLE")
    end = await source.latest_offset(at, EVERYTHING)
    assert reported(list_rows(await read_batches(source, at, end)), "id") == [(1, "delete", 1)]
