"""Rows 3 to 7 of the corners: deletion vectors as changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import (
    CorruptLogError,
    InvalidDeletionVectorError,
    MissingDataFileError,
    PathOutsideTableError,
)
from tests.cli.commands import Commands
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import changes, reported
from tests.tables.naive_log import Action

pytestmark = pytest.mark.attack


ROWS = [{"id": number, "name": f"n{number}"} for number in range(6)]


def vector_table(folder: Path, **options: object) -> tuple[TableBuilder, Action]:
    """A table of one file with the rows 0 to 5, and its `add`."""
    table = TableBuilder(folder, reader_features=["deletionVectors"], **options)  # type: ignore[arg-type]
    [add] = table.append(ROWS).adds
    return table, add


def ids(rows: list[dict[str, object]], change: str) -> list[object]:
    return sorted(row["id"] for row in rows if row["_change_type"] == change)  # type: ignore[type-var]


CASES = {
    "none to some": ((), (1, 3)),
    "some to none": ((1, 3), ()),
    "some to more": ((1, 3), (1, 3, 4)),
    "some to others": ((1, 3), (3, 4)),
    "all to none": (range(6), ()),
    "none to all": ((), range(6)),
    "the same": ((2,), (2,)),
}


@pytest.mark.parametrize("order", ["add first", "remove first"])
@pytest.mark.parametrize("storage", ["u", "p", "i"])
@pytest.mark.parametrize("case", CASES)
async def test_rows_03_04_07_only_the_difference_of_two_vectors_changed(
    tmp_path: Path, case: str, storage: str, order: str
) -> None:
    old, new = CASES[case]
    table, plain = vector_table(tmp_path)
    before = table.with_vector(plain, old, storage=storage) if old else plain
    if old:
        table.commit(table.remove(plain), before)
    after = table.with_vector(plain, new, storage=storage) if new else plain
    actions = [after, table.remove(before)]
    table.commit(*(actions if order == "add first" else reversed(actions)))

    rows = await changes(tmp_path, str(table.version), mode=ChangeMode.FILES)

    assert ids(rows, "delete") == sorted(set(new) - set(old))
    assert ids(rows, "insert") == sorted(set(old) - set(new))
    assert len(rows) == len(set(old) ^ set(new))
    snapshot = await changes(tmp_path, "snapshot")
    assert ids(snapshot, "insert") == [number for number in range(6) if number not in new]


async def test_row_03_a_file_removed_and_added_without_any_vector_is_an_error(
    tmp_path: Path,
) -> None:
    table, add = vector_table(tmp_path)
    table.commit(table.remove(add), add)
    with pytest.raises(CorruptLogError, match="both removes and adds"):
        await changes(tmp_path, "1")


@pytest.mark.parametrize("quiet", ["add", "remove"])
async def test_row_03_it_is_enough_that_one_action_of_a_pair_changes_data(
    tmp_path: Path, quiet: str
) -> None:
    table, add = vector_table(tmp_path)
    marked = table.with_vector(add, [2], data_change=quiet != "add")
    table.commit(marked, table.remove(add, data_change=quiet != "remove"))
    assert reported(await changes(tmp_path, "1"), "id") == [(1, "delete", 2)]


async def test_row_03_a_pair_that_changes_no_data_gives_no_rows(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path)
    marked = table.with_vector(add, [2], data_change=False)
    table.commit(marked, table.remove(add, data_change=False))
    assert await changes(tmp_path, "1") == []


async def test_row_03_update_by_vector_gives_deleted_rows_and_the_new_file(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path)
    table.commit(
        table.data_file([{"id": 2, "name": "new"}]),
        table.with_vector(add, [2]),
        table.remove(add),
    )
    assert reported(await changes(tmp_path, "1"), "id", "name") == [
        (1, "delete", 2, "n2"),
        (1, "insert", 2, "new"),
    ]


@pytest.mark.parametrize("spelling", ["encoded", "absolute", "url"])
async def test_rows_04_40_the_two_actions_of_a_pair_may_spell_their_path_differently(
    tmp_path: Path, spelling: str
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.create(table.data_file(ROWS, path="a b.parquet")).adds
    assert add["add"]["path"] == "a%20b.parquet"
    other = {
        "encoded": "%61%20b.parquet",
        "absolute": f"{tmp_path}/a%20b.parquet",
        "url": f"{tmp_path.as_uri()}/a%20b.parquet",
    }[spelling]
    table.commit(table.with_vector(add, [1]), table.remove(add, path=other))
    assert reported(await changes(tmp_path, "1"), "id") == [(1, "delete", 1)]


async def test_row_05_removing_a_file_that_has_a_vector_deletes_only_what_it_left(
    tmp_path: Path,
) -> None:
    table, add = vector_table(tmp_path)
    marked = table.with_vector(add, [0, 1, 5])
    table.commit(table.remove(add), marked)
    table.commit(table.remove(marked))
    rows = await changes(tmp_path, "2")
    assert reported(rows, "id") == [(2, "delete", 2), (2, "delete", 3), (2, "delete", 4)]


async def test_row_05_adding_a_file_that_has_a_vector_inserts_only_what_it_left(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    table.create()
    table.commit(table.with_vector(table.data_file(ROWS), [0, 1, 5]))
    assert ids(await changes(tmp_path, "1"), "insert") == [2, 3, 4]


@pytest.mark.parametrize("features", [None, ["deletionVectors"]])
async def test_row_06_the_vector_on_the_action_counts_and_not_the_property(
    tmp_path: Path, features: list[str] | None
) -> None:
    off = {"delta.enableDeletionVectors": "false"}
    table = TableBuilder(tmp_path, reader_features=features, properties=off)
    [add] = table.append(ROWS).adds
    table.delete_rows(add, [3])
    assert reported(await changes(tmp_path, "1"), "id") == [(1, "delete", 3)]
    assert ids(await changes(tmp_path, "snapshot"), "insert") == [0, 1, 2, 4, 5]


async def test_row_07_several_vectors_of_one_file_are_told_apart(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    adds = table.create(*(table.data_file(ROWS) for _ in range(3))).adds
    file = table.vector_file(prefix="ab")
    marked = [
        {"add": {**add["add"], "deletionVector": file.add([number])}}
        for number, add in enumerate(adds)
    ]
    table.commit(*marked, *map(table.remove, adds))
    assert reported(await changes(tmp_path, "1"), "id") == [
        (1, "delete", 0),
        (1, "delete", 1),
        (1, "delete", 2),
    ]
    assert len(await changes(tmp_path, "snapshot")) == 15


async def test_row_07_a_vector_without_offset_is_the_first_of_its_file(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path)
    descriptor = table.vector_file().add([4])
    del descriptor["offset"]
    table.commit({"add": {**add["add"], "deletionVector": descriptor}}, table.remove(add))
    assert reported(await changes(tmp_path, "1"), "id") == [(1, "delete", 4)]


async def test_row_07_positions_count_over_all_row_groups(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.create(table.data_file(ROWS, row_group_size=2)).adds
    table.delete_rows(add, [0, 3, 4, 5])
    assert ids(await changes(tmp_path, "1"), "delete") == [0, 3, 4, 5]
    assert ids(await changes(tmp_path, "snapshot"), "insert") == [1, 2]


def damaged(
    table: TableBuilder,
    add: Action,
    positions: Iterable[int] = (1,),
    *,
    checksum: int | None = None,
    **wrong: object,
) -> None:
    descriptor = table.vector_file().add(positions, checksum=checksum)
    marked = {"add": {**add["add"], "deletionVector": {**descriptor, **wrong}}}
    table.commit(marked, table.remove(add))


@pytest.mark.parametrize(
    "wrong",
    [{"checksum": 1}, {"cardinality": 2}, {"sizeInBytes": 3}, {"offset": 9}, {"offset": 4000}],
    ids=repr,
)
async def test_row_07_a_damaged_vector_is_an_error_and_never_other_rows(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    table, add = vector_table(tmp_path)
    damaged(table, add, **wrong)
    for start in ("1", "snapshot"):
        with pytest.raises(InvalidDeletionVectorError):
            await changes(tmp_path, start)


async def test_row_07_a_vector_of_rows_the_file_does_not_have_is_an_error(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path)
    damaged(table, add, [6])
    with pytest.raises(InvalidDeletionVectorError, match="deletes row 6 of a file with 6 rows"):
        await changes(tmp_path, "1")


async def test_row_07_an_unknown_kind_of_vector_is_an_error(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path)
    damaged(table, add, storageType="z")
    with pytest.raises(CorruptLogError, match="storage type 'z'"):
        await changes(tmp_path, "1")


async def test_row_07_a_vector_file_outside_the_table_is_refused(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path / "table")
    other, _ = vector_table(tmp_path / "other")
    descriptor = other.vector_file().add([1], storage_type="p")
    table.commit({"add": {**add["add"], "deletionVector": descriptor}}, table.remove(add))
    with pytest.raises(PathOutsideTableError):
        await changes(tmp_path / "table", "1")
    allowed = [str(tmp_path / "other")]
    assert reported(await changes(tmp_path / "table", "1", allowed=allowed), "id") == [
        (1, "delete", 1)
    ]


async def test_row_07_a_missing_vector_file_is_named(tmp_path: Path) -> None:
    table, add = vector_table(tmp_path)
    file = table.vector_file()
    table.commit({"add": {**add["add"], "deletionVector": file.add([1])}}, table.remove(add))
    file.path.unlink()
    with pytest.raises(MissingDataFileError, match=re.escape(file.path.name)):
        await changes(tmp_path, "1")


def test_rows_03_05_the_command_tells_vector_changes(tmp_path: Path, command: Commands) -> None:
    table, add = vector_table(tmp_path, properties=CDF)
    commit = table.delete_rows(add, [0, 2])
    [marked] = commit.adds
    table.commit(table.remove(marked), add, operation="RESTORE")
    ran = command.tail(tmp_path, "--from", 1)
    assert (ran.status, ran.errors) == (0, "")
    assert reported(ran.rows, "id") == [
        (1, "delete", 0),
        (1, "delete", 2),
        (2, "insert", 0),
        (2, "insert", 2),
    ]
