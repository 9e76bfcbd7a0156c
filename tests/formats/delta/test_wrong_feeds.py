"""Change files that contradict the record counts of their commit's file actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tests.formats.delta.test_messages import command
from tests.tables.builder import CDF, TableBuilder
from tests.tables.feed import Row, changes
from tests.tables.naive_log import Action

pytestmark = pytest.mark.attack

POST = {"id": 20, "_change_type": "update_postimage"}
PRE = {"id": 2, "_change_type": "update_preimage"}


def make_table(folder: Path) -> tuple[TableBuilder, Action]:
    table = TableBuilder(
        folder, fields=[("id", "long")], properties=CDF, reader_features=["deletionVectors"]
    )
    [add] = table.append([{"id": 1}, {"id": 2}]).adds
    return table, add


def without_stats(action: Action) -> Action:
    [(kind, body)] = action.items()
    return {kind: {key: value for key, value in body.items() if key != "stats"}}


async def last_changes(table: TableBuilder, **options: Any) -> list[tuple[str, int, str]]:
    rows: list[Row] = await changes(table.folder, str(table.version), **options)
    return [(str(row["_change_type"]), int(row["id"]), str(row["change_source"])) for row in rows]


BOTH_IMAGES = [("update_preimage", 2, "rows"), ("update_postimage", 20, "rows")]


@pytest.mark.parametrize("has_stats", [True, False])
@pytest.mark.parametrize("given", [POST, PRE], ids=["new image", "old image"])
async def test_an_update_whose_feed_has_one_image_gives_both(
    tmp_path: Path, given: Row, has_stats: bool
) -> None:
    table, add = make_table(tmp_path)
    new = table.data_file([{"id": 1}, {"id": 20}])
    new = new if has_stats else without_stats(new)
    table.commit(table.remove(add), new, table.cdc_file([given]), operation="UPDATE")
    assert await last_changes(table) == BOTH_IMAGES


async def test_an_update_by_vectors_whose_feed_has_one_image_gives_both(tmp_path: Path) -> None:
    table, add = make_table(tmp_path)
    marked, new = table.with_vector(add, [1]), table.data_file([{"id": 20}])
    table.commit(table.remove(add), marked, new, table.cdc_file([POST]), operation="UPDATE")
    assert await last_changes(table) == BOTH_IMAGES


@pytest.mark.parametrize(
    "feed",
    [
        [{"id": 20, "_change_type": "insert"}],
        [{"id": 2, "_change_type": "delete"}],
        [PRE, POST, {"id": 9, "_change_type": "insert"}],
    ],
    ids=["no delete", "no insert", "one too many"],
)
async def test_a_feed_that_does_not_add_up_is_replaced_by_the_rows(
    tmp_path: Path, feed: list[Row]
) -> None:
    table, add = make_table(tmp_path)
    new = table.data_file([{"id": 1}, {"id": 20}])
    table.commit(table.remove(add), new, table.cdc_file(feed), operation="MERGE")
    assert await last_changes(table) == [("delete", 2, "rows"), ("insert", 20, "rows")]


@pytest.mark.parametrize("mode", [ChangeMode.AUTO, ChangeMode.CDF])
async def test_a_feed_that_adds_up_is_read(tmp_path: Path, mode: ChangeMode) -> None:
    table, add = make_table(tmp_path)
    new = table.data_file([{"id": 1}, {"id": 20}])
    table.commit(table.remove(add), new, table.cdc_file([PRE, POST]), operation="UPDATE")
    assert await last_changes(table, mode=mode) == [
        ("update_preimage", 2, "cdc"),
        ("update_postimage", 20, "cdc"),
    ]


async def test_the_mode_of_the_feed_gives_the_feed_as_it_is(tmp_path: Path) -> None:
    table, add = make_table(tmp_path)
    new = table.data_file([{"id": 1}, {"id": 20}])
    table.commit(table.remove(add), new, table.cdc_file([POST]), operation="UPDATE")
    assert await last_changes(table, mode=ChangeMode.CDF) == [("update_postimage", 20, "cdc")]


def test_debezium_gets_one_update_with_a_key(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    [add] = table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).adds
    new = table.data_file([{"id": 1, "name": "a"}, {"id": 2, "name": "c"}])
    image = {"id": 2, "name": "c", "_change_type": "update_postimage"}
    table.commit(table.remove(add), new, table.cdc_file([image]), operation="UPDATE")
    done = command(
        "tail", table.folder, "--from", "1", "--once", "--format", "jsonl", "--key", "id"
    )
    assert [line.count('"update_') for line in done.stdout.splitlines()] == [1, 1]
