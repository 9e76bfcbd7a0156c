"""A group's checkpoint counts the parts of a commit as its tables' `changes` divide them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.config import TableConfig
from tailerd.config.sections import read_sink
from tailerd.spark.group.followed_member import FollowedMember
from tailerd.spark.group.follower import GroupFollower
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.members import GroupTable, Members
from tests.tables.builder import TableBuilder


@pytest.fixture
def orders(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders")
    for number in range(3):
        table.append([{"id": number, "name": "x"}])
    return table


def member(table: TableBuilder, tmp_path: Path, changes: str) -> GroupTable:
    sink = read_sink("sink", {"kind": "file", "path": str(tmp_path / "out")})
    fields = {"path": str(table.folder), "from": "0", "sink": sink, "changes": changes}
    return GroupTable(name="orders", config=TableConfig.model_validate(fields))


def offset(table: TableBuilder, version: int, position: int = 0) -> Offset:
    return Offset(table_id=table.table_id, version=Version(version), position=position)


@pytest.mark.parametrize(
    ("position", "planned", "is_refused"),
    [(1, "files", True), (1, "auto", False), (0, "files", False)],
)
async def test_within_a_commit_a_table_goes_on_with_the_changes_it_was_planned_with(
    orders: TableBuilder, tmp_path: Path, position: int, planned: str, is_refused: bool
) -> None:
    followed = FollowedMember(member(orders, tmp_path, "auto"), None, asyncio.Event())
    entry = Entry(offset=offset(orders, 1, position), generation=0, moved=1, changes=planned)
    step = await followed.look(entry, ReadLimit(), once=False)
    assert (step is None) == is_refused
    if is_refused:
        assert followed.is_lost
        assert "Set changes back to files" in str(followed.problem)


async def test_a_batch_that_is_repeated_has_the_rows_it_was_planned_with_or_an_error(
    orders: TableBuilder, tmp_path: Path
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    Members(number=1, tables=(member(orders, tmp_path, "files"),)).write(group)
    before = GroupFollower(group)
    planned = await before.latest(GroupOffset())
    await before.aclose()
    assert planned.tables["orders"].changes == "files"
    Members(number=2, tables=(member(orders, tmp_path, "auto"),)).write(group)
    follower = GroupFollower(group)
    [rows] = await follower.rows(GroupOffset(), planned)
    await follower.aclose()
    assert rows.error is not None
    assert "was planned with changes 'files'" in str(rows.error)
