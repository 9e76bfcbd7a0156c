"""Rewritten partitions: what is compared, how updates pair, and in which memory."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.reading import compared_files
from tests.formats.kartothek.observing import Follower
from tests.tables.dataset_writer import DatasetWriter, Rows

PARTS = pa.schema(
    [pa.field("id", pa.int64()), pa.field("part", pa.int64()), pa.field("name", pa.string())]
)


def row(number: int, part: int = 0, name: str = "n") -> dict[str, object]:
    return {"id": number, "part": part, "name": name}


def reported(batches: list[ChangeBatch]) -> list[tuple[object, ...]]:
    return [
        (change, *found.values())
        for batch in batches
        for change, found in zip(
            batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True
        )
    ]


async def test_a_rewritten_partition_is_said_to_be_compared(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, schema=PARTS, partition_on=["part"])
    writer.commit([row(1, 0), row(2, 1), row(3, 2)])
    follower = await Follower.open(writer.location, "latest")
    writer.commit([row(1, 0), row(4, 0), row(5, 3)], without=lambda label: "part=2" not in label)
    end = await follower.source.latest_offset(follower.at, follower.limit)
    [group] = [group async for group in follower.source.plan(follower.at, end)]
    assert group.change_source is ChangeSourceKind.ROWS
    assert [task.change_source for task in group.tasks] == [
        ChangeSourceKind.FILES,
        ChangeSourceKind.ROWS,
        ChangeSourceKind.FILES,
    ]
    assert reported(await follower.rest()) == [
        ("delete", 2, 1, "n"),
        ("insert", 4, 0, "n"),
        ("insert", 5, 3, "n"),
    ]


async def test_rows_of_one_key_are_an_update_in_whichever_partition(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, schema=PARTS, partition_on=["part"])
    writer.commit([row(1, 0), row(2, 0), row(3, 1), row(4, 2)])
    follower = await Follower.open(writer.location, "latest", identity=["id"])
    # 1 is renamed, 2 stays, 3 moves to a partition of its own, 4 goes, 5 comes.
    writer.commit([row(1, 0, "new"), row(2, 0), row(3, 7), row(5, 0)], without=lambda _: True)
    found = reported(await follower.rest())
    assert found[0] == ("delete", 4, 2, "n")
    assert sorted(found[1:]) == sorted(
        [
            ("update_preimage", 1, 0, "n"),
            ("update_postimage", 1, 0, "new"),
            ("insert", 5, 0, "n"),
            ("update_preimage", 3, 1, "n"),
            ("update_postimage", 3, 7, "n"),
        ]
    )
    for index, change in enumerate(found):
        if change[0] == "update_preimage":
            assert found[index + 1][:2] == ("update_postimage", change[1])


async def test_a_key_that_is_no_column_pairs_nothing(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, schema=PARTS)
    writer.commit([row(1)])
    follower = await Follower.open(writer.location, "latest", identity=["nope"])
    writer.commit([row(1, 0, "new")], without=lambda _: True)
    assert [each[0] for each in reported(await follower.rest())] == ["delete", "insert"]


async def test_one_value_spelled_in_two_ways_is_one_partition(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, schema=PARTS, partition_on=["part"])
    writer.commit([row(1, 5)])
    follower = await Follower.open(writer.location, "latest")
    [(label, files)] = writer.partitions.items()
    [key] = files.values()
    again = key.replace("part=5/", "part=05/")
    (tmp_path / again).parent.mkdir()
    (tmp_path / again).write_bytes((tmp_path / key).read_bytes())
    writer.partitions = {label.replace("part=5/", "part=05/"): {"table": again}}
    writer.store_metadata()
    assert reported(await follower.rest()) == []


@pytest.mark.parametrize("identity", [(), ("id",)], ids=["no key", "key"])
async def test_little_memory_gives_the_same_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[str, ...]
) -> None:
    monkeypatch.setattr(compared_files, "MIN_MEMORY_BYTES", 1)
    writer = DatasetWriter(tmp_path, schema=PARTS, partition_on=["part"])
    count = 6000
    writer.commit([row(number, number % 2) for number in range(count)])
    follower = await Follower.open(writer.location, "latest", identity=identity)
    changed = [row(number, number % 2, "b" if number % 3 == 0 else "n") for number in range(count)]
    writer.commit(changed[::-1], without=lambda _: True)
    end = await follower.source.latest_offset(follower.at, follower.limit)
    [group] = [group async for group in follower.source.plan(follower.at, end)]
    little = BatchLimit(max_rows=500, max_bytes=20_000, working_bytes=50_000)
    plain, bounded = (
        [reported(list(follower.source.read(task, limit))) for task in group.tasks]
        for limit in (BatchLimit(), little)
    )
    assert plain == bounded
    assert sum(map(len, plain)) == 2 * len(range(0, count, 3))


@pytest.mark.parametrize("begun", [ChangeMode.AUTO, ChangeMode.FILES])
@pytest.mark.parametrize("identity", [(), ("id",)], ids=["no key", "key"])
async def test_a_commit_is_finished_as_it_was_begun(
    tmp_path: Path, begun: ChangeMode, identity: tuple[str, ...]
) -> None:
    """Neither other `changes` nor another key may skip or repeat rows of a half-given commit."""
    writer = DatasetWriter(tmp_path / "store", schema=PARTS, partition_on=["part"])
    writer.commit([row(number, number) for number in range(4)])
    one = ReadLimit(max_files=1, max_bytes=1)
    follower = await Follower.open(
        writer.location, "latest", ledger=tmp_path / "ledger", changes=begun, limit=one
    )
    writer.commit([row(1, 1, "x"), row(8, 8), row(9, 9)], without=lambda label: "=0" not in label)
    first = await follower.step()
    other = {ChangeMode.AUTO: ChangeMode.FILES, ChangeMode.FILES: ChangeMode.AUTO}[begun]
    again = await Follower.open(
        writer.location, "latest", ledger=tmp_path / "ledger", changes=other, identity=identity
    )
    again.at = follower.at
    assert again.at.position > 0
    found = [*first, *await again.rest()]
    gone = [each[1:] for each in reported(found) if each[0] in ("delete", "update_preimage")]
    came = [each[1:] for each in reported(found) if each[0] in ("insert", "update_postimage")]
    assert sorted(gone) == [(1, 1, "n"), (2, 2, "n"), (3, 3, "n")]
    assert sorted(came) == [(1, 1, "x"), (8, 8, "n"), (9, 9, "n")]


@pytest.mark.parametrize("number", range(8))
async def test_replaying_updates_by_key_gives_the_next_state(tmp_path: Path, number: int) -> None:
    """The law with pairing: rows by key, moved between partitions, removed and added."""
    chance = random.Random(number)
    writer = DatasetWriter(tmp_path / "store", schema=PARTS, partition_on=["part"])
    state: dict[int, dict[str, object]] = {n: row(n, n % 3) for n in range(12)}
    writer.commit(list(state.values()))
    follower = await Follower.open(writer.location, ledger=tmp_path / "ledger", identity=["id"])
    replayed: dict[object, tuple[object, ...]] = {}
    for step in range(5):
        for change, *values in reported(await follower.rest()):
            if change in ("insert", "update_postimage"):
                assert values[0] not in replayed
                replayed[values[0]] = tuple(values)
            else:
                assert replayed.pop(values[0]) == tuple(values)
        assert replayed == {n: tuple(each.values()) for n, each in state.items()}
        state = {
            n: row(n, chance.randrange(3), chance.choice(["n", f"s{step}"]))
            for n in {*chance.sample(range(20), 12)}
        }
        kept: Rows = list(state.values())
        writer.commit(kept, without=lambda _: True)
