"""Rows 32 to 34 of the corners: the snapshot a reader begins with, and what follows it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import MissingVersionError
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder
from tests.tables.feed import (
    EVERYTHING,
    ONE_FILE,
    changes,
    counted,
    list_rows,
    read_batches,
    steps,
)
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"id": number, "name": str(number)} for number in numbers]


def busy(folder: Path) -> TableBuilder:
    """A table with files added again: by statistics, by vectors, by a copied path."""
    table = TableBuilder(folder, reader_features=["deletionVectors"])
    adds = table.create(*(table.data_file(rows(n, n + 100)) for n in range(6))).adds
    # Statistics recomputed: the same file is added again, and again.
    for number in (1, 2):
        table.commit(
            {"add": {**adds[0]["add"], "dataChange": False, "tags": {"again": str(number)}}}
        )
    marked = table.delete_rows(adds[1], [0]).adds[0]
    more = table.with_vector(adds[1], [0, 1])
    table.commit(more, table.remove(marked))
    table.commit(table.remove(adds[2]))
    return table


@pytest.mark.parametrize("checkpoint", [None, 2, 5], ids="checkpoint {}".format)
async def test_row_32_a_file_added_again_is_in_the_snapshot_once(
    tmp_path: Path, checkpoint: int | None
) -> None:
    table = busy(tmp_path)
    if checkpoint is not None:
        table.checkpoint(checkpoint)
    found = await changes(tmp_path, "snapshot", limit=ONE_FILE)
    assert sorted(row["id"] for row in found) == [0, 3, 4, 5, 100, 103, 104, 105]
    assert {row["_commit_version"] for row in found} == {5}
    assert {row["change_source"] for row in found} == {"snapshot"}
    assert sorted(row["id"] for row in table.rows()) == sorted(row["id"] for row in found)


LAYOUTS: dict[str, Callable[[TableBuilder], object]] = {
    "checkpoint": lambda table: table.checkpoint(5),
    "parts": lambda table: table.checkpoint(5, parts=2),
    "v2 with sidecars": lambda table: table.checkpoint(5, layout="v2-json", sidecars=2),
    "compaction": lambda table: table.compact(1, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_row_33_a_restart_in_the_middle_of_a_snapshot_does_not_mind_a_new_log_layout(
    tmp_path: Path, layout: str
) -> None:
    table = busy(tmp_path)
    table.append(rows(200))
    whole = await changes(tmp_path, "snapshot")
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("snapshot")
    delivered = []
    is_first = True
    while (end := await source.latest_offset(at, ONE_FILE)) != at:
        delivered += list_rows(await read_batches(source, at, end))
        at = Offset.from_json(end.to_json())
        if is_first:
            LAYOUTS[layout](table)
            table.append(rows(300))
            is_first = False
        source = await open_delta(str(tmp_path))
    assert counted(delivered[:-1]) == counted(whole)
    assert (delivered[-1]["id"], delivered[-1]["change_source"]) == (300, "files")


async def test_row_33_a_snapshot_whose_version_was_cleaned_up_meanwhile_is_refused_by_name(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    for number in range(4):
        table.append(rows(number))
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("snapshot")
    at = await source.latest_offset(at, ONE_FILE)
    assert at.phase is Phase.SNAPSHOT
    table.append(rows(4))
    table.append(rows(5))
    table.checkpoint(5)
    for version in range(5):
        table.commit_path(version).unlink()
    again = await open_delta(str(tmp_path))
    with pytest.raises(MissingVersionError):
        await again.latest_offset(at, ONE_FILE)


async def test_row_34_following_begins_at_the_version_behind_the_snapshot(tmp_path: Path) -> None:
    table = busy(tmp_path)
    taken = await steps(tmp_path, "snapshot", limit=ONE_FILE)
    assert [start.phase for start, _, _ in taken] == [Phase.SNAPSHOT] * len(taken)
    assert len(taken) == len(table.state().adds) == 5, "one file a step"
    last = taken[-1][1]
    assert (last.version, last.phase, last.position) == (table.version + 1, Phase.FOLLOW, 0)


async def test_row_34_an_empty_table_has_an_empty_snapshot_and_is_then_followed(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    table.create()
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("snapshot")
    end = await source.latest_offset(at, ONE_FILE)
    assert (end.version, end.phase) == (1, Phase.FOLLOW)
    assert await read_batches(source, at, end) == []
    table.append(rows(1))
    last = await source.latest_offset(end, ONE_FILE)
    assert [row["id"] for row in list_rows(await read_batches(source, end, last))] == [1]


async def test_row_34_one_plan_may_reach_from_the_snapshot_into_what_follows(
    tmp_path: Path,
) -> None:
    table = busy(tmp_path)
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("snapshot")
    table.append(rows(200))
    end = (
        Offset(table_id=at.table_id, version=at.version).after_version(source).after_version(source)
    )
    found = list_rows(await read_batches(source, at, end))
    assert [row["id"] for row in found if row["change_source"] == "files"] == [200]
    assert len(found) == 9


@pytest.mark.parametrize("attempt", range(5))
async def test_row_34_snapshot_and_follow_have_no_hole_and_no_overlap(
    tmp_path: Path, seed: int, attempt: int
) -> None:
    """A writer commits, a checkpoint may be written and the reader may die, after every step."""
    chance = random.Random(f"{seed}.{attempt}")
    table = busy(tmp_path)
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("snapshot")
    delivered: list[dict[str, object]] = []
    commits = 0
    while True:
        end = await source.latest_offset(at, ReadLimit(max_files=chance.randint(1, 4)))
        if end == at and commits == 4:
            break
        delivered += list_rows(await read_batches(source, at, end))
        at = end
        await source.commit(at)
        if commits < 4 and chance.random() < 0.5:
            commits += 1
            table.append(rows(*range(1000 * commits, 1000 * commits + 2)))
        if chance.random() < 0.5:
            table.checkpoint()
        if chance.random() < 0.5:
            source = await open_delta(str(tmp_path))
            at = Offset.from_json(at.to_json())
    assert sorted(str(row["id"]) for row in delivered) == sorted(
        str(row["id"]) for row in table.rows()
    )


def test_row_34_the_command_follows_a_snapshot_to_a_later_version(
    tmp_path: Path, command: Commands
) -> None:
    busy(tmp_path)
    ran = command.tail(tmp_path, "--from", "snapshot")
    assert (ran.status, len(ran.rows)) == (0, 8)
    assert {row["_change_type"] for row in ran.rows} == {"insert"}


async def test_an_offset_in_a_snapshot_waits_for_nothing_new(tmp_path: Path) -> None:
    busy(tmp_path)
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("snapshot")
    backlog = await source.backlog(at)
    assert (backlog.head_version, backlog.versions) == (5, 1)
    end = await source.latest_offset(at, EVERYTHING)
    backlog = await source.backlog(end)
    assert (backlog.versions, backlog.oldest_undelivered_timestamp_ms) == (0, None)
