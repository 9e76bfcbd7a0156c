"""What a group keeps beside its checkpoint when that is made anew or put back from a copy."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from tailerd.config import TableConfig
from tailerd.config.sections import read_sink
from tailerd.spark.encoded_records import VALUE
from tailerd.spark.group.follower import GroupFollower
from tailerd.spark.group.group_offset import GroupOffset
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.quarantine import held_back, read_holds, settle_holds, write_holds
from tailerd.spark.group.record_partitions import pack_tables, read_records
from tailerd.storage.stores import Stores
from tests.tables.builder import TableBuilder

ROWS = 12


def begin_checkpoint(folder: Path, query: str) -> None:
    """Make one as Spark does, in place of what is there."""
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True)
    (folder / "checkpoint/metadata").write_text(json.dumps({"id": query}))


def log_batch(folder: Path, end: GroupOffset) -> None:
    text = f"v1\n{{}}\n{json.dumps(end.fields())}"
    (folder / f"checkpoint/offsets/{end.number - 1}").write_text(text)


def take(folder: Path, table: Path, most: int) -> None:
    lines = read_sink("sink", {"kind": "file", "path": "/out"})
    section = {"path": str(table), "from": "0", "max_files_per_batch": most, "sink": lines}
    member = GroupTable(name="a", config=TableConfig.model_validate(section))
    Members(number=most, tables=(member,)).write(folder)


async def delivered(folder: Path, start: GroupOffset, hold_at: int = -1) -> list[int]:
    """Do all batches, the one of a number without the table, by a source made anew."""
    follower, at, ids = GroupFollower(folder), start, list[int]()
    while (end := await follower.latest(at)).number != at.number:
        log_batch(folder, end)
        if end.number == hold_at:
            held = held_back(read_holds(folder), end, "a", attempt=1, retry_at=0.0)
            write_holds(folder, held)
            await follower.aclose()
            follower = GroupFollower(folder)
        for partition in pack_tables(await follower.rows(at, end)):
            for piece in read_records(partition, Stores()):
                ids += [json.loads(value)["id"] for value in piece.records[VALUE].to_pylist()]
        at = end
    await follower.aclose()
    return ids


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A group that has held its table back from the second batch, far on."""
    builder, folder = TableBuilder(tmp_path / "lake"), tmp_path / "group"
    for number in range(ROWS):
        builder.append([{"id": number}])
    begin_checkpoint(folder, "first")
    take(folder, builder.folder, 4)
    with patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0):
        assert asyncio.run(delivered(folder, GroupOffset(), hold_at=2)) == list(range(ROWS))
    assert read_holds(folder)["a"].begin.version == 4
    take(folder, builder.folder, 1)
    return folder


def test_a_note_of_the_checkpoint_before_holds_nothing_back_from_the_new_one(group: Path) -> None:
    shutil.rmtree(group / "checkpoint")
    assert settle_holds(group) == {}
    begin_checkpoint(group, "second")
    with patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0):
        assert asyncio.run(delivered(group, GroupOffset())) == list(range(ROWS))


def test_a_note_of_a_batch_behind_the_end_of_a_checkpoint_put_back_holds_nothing_back(
    group: Path,
) -> None:
    for path in (group / "checkpoint/offsets").iterdir():
        if path.name != "0":
            path.unlink()
    assert settle_holds(group) == {}
    end = GroupOffset.from_json((group / "checkpoint/offsets/0").read_text().splitlines()[2])
    with patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0):
        assert asyncio.run(delivered(group, end)) == list(range(4, ROWS))


def test_another_checkpoints_note_is_not_read_however_far_that_one_is(group: Path) -> None:
    (group / "checkpoint/metadata").write_text('{"id": "second"}')
    assert read_holds(group) == {}
