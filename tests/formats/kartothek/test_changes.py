"""What changes between two observed states, and in which order it is told."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.errors import (
    ConfigError,
    CorruptLogError,
    MissingDataFileError,
    MissingVersionError,
    TableRecreatedError,
    UnsupportedFeatureError,
)
from tests.formats.kartothek.observing import Follower, deleted, inserted, opened
from tests.tables.dataset_writer import SCHEMA, DatasetWriter, Rows


def rows(*ids: int, name: str = "n") -> Rows:
    return [{"id": number, "name": f"{name}{number}"} for number in ids]


def counted(expected: Rows) -> Counter[tuple[object, ...]]:
    return Counter(tuple(repr(value) for value in row.values()) for row in expected)


async def test_unchanged_rows_of_a_rewritten_partition_cancel(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(*range(100)))
    follower = await Follower.open(writer.location, "latest")
    writer.commit([*rows(*range(99)), *rows(99, name="other")], without=lambda _: True)
    found = await follower.rest()
    assert deleted(found) == counted(rows(99))
    assert inserted(found) == counted(rows(99, name="other"))


async def test_all_rows_come_where_files_are_asked_for(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1, 2))
    follower = await Follower.open(writer.location, "latest", changes=ChangeMode.FILES)
    writer.commit(rows(1, 2, 3), without=lambda _: True)
    found = await follower.rest()
    assert deleted(found) == counted(rows(1, 2))
    assert inserted(found) == counted(rows(1, 2, 3))


async def test_deletes_of_a_commit_come_before_its_inserts(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, partition_on=["name"])
    writer.commit(rows(1, 2, 3))
    follower = await Follower.open(
        writer.location, "latest", limit=ReadLimit(max_files=1, max_bytes=1)
    )
    writer.commit(rows(1, 4, 5), without=lambda label: "n3" not in label)
    found = await follower.rest()
    kinds = [kind for batch in found for kind in batch.count_changes()]
    assert kinds == sorted(kinds), "delete sorts before insert"
    assert deleted(found) == counted([{"id": 2, "name": "n2"}])
    assert inserted(found) == counted(rows(4, 5))
    assert [batch.change_source for batch in found] == [
        ChangeSourceKind.FILES,
        ChangeSourceKind.FILES,
        ChangeSourceKind.FILES,
    ]


@pytest.mark.attack
async def test_binary_partition_values_keep_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("p", pa.binary())])
    writer = DatasetWriter(tmp_path, schema=schema, partition_on=["p"])
    values = [b"a", b"", b"\xff", b"\xfe", b"\xef\xbf\xbd"]
    expected: Rows = [{"id": number, "p": value} for number, value in enumerate(values)]
    writer.commit(expected)
    follower = await Follower.open(writer.location, "snapshot")
    assert inserted(await follower.rest()) == counted(expected)


@pytest.mark.attack
async def test_a_text_in_a_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, partition_on=["name"])
    writer.commit(rows(1))
    [(label, files)] = writer.partitions.items()
    key = files["table"].replace("name=n1", "name=%FF")
    writer.path(key).parent.mkdir()
    writer.path(files["table"]).rename(writer.path(key))
    writer.partitions = {label: {"table": key}}
    writer.store_metadata()
    follower = await Follower.open(writer.location, "snapshot")
    with pytest.raises(CorruptLogError, match="not a valid string"):
        await follower.rest()


async def test_an_overwrite_takes_the_old_rows_away(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1, 2))
    follower = await Follower.open(writer.location, "latest")
    old_id = follower.source.table_id
    other = pa.schema([pa.field("id", pa.string()), pa.field("new", pa.float64())])
    writer.overwrite([{"id": "a", "new": 0.5}], other)
    steps = await _steps(follower)
    found = await follower.rest()
    assert deleted(found) == counted(rows(1, 2))
    assert inserted(found) == counted([{"id": "a", "new": 0.5}])
    assert steps == [SCHEMA, other]
    assert follower.at.table_id != old_id


async def _steps(follower: Follower) -> list[pa.Schema]:
    end = await follower.source.latest_offset(follower.at, follower.limit)
    return [step.schema async for step in follower.source.schema_steps(follower.at, end)]


async def test_a_column_of_nulls_that_gets_a_type_keeps_rows_comparable(tmp_path: Path) -> None:
    nulls = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.null())])
    writer = DatasetWriter(tmp_path, schema=nulls)
    writer.commit([{"id": 1, "x": None}, {"id": 2, "x": None}])
    follower = await Follower.open(writer.location, "latest")
    writer.schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.float64())])
    writer.commit([{"id": 1, "x": None}, {"id": 2, "x": 0.5}], without=lambda _: True)
    found = await follower.rest()
    assert deleted(found) == counted([{"id": 2, "x": None}])
    assert inserted(found) == counted([{"id": 2, "x": 0.5}])


async def test_annotations_and_indices_are_commits_without_rows(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1))
    follower = await Follower.open(writer.location, "latest")
    writer.user_metadata = {"source": "erp", "nested": {"a": [1, 2]}}
    writer.store_metadata()
    writer.indices = {"id": "ds/indices/id/2026.by-dataset-index.parquet"}
    end = await follower.source.latest_offset(follower.at, follower.limit)
    writer.store_metadata()
    end = await follower.source.latest_offset(end, follower.limit)
    groups = [group async for group in follower.source.plan(follower.at, end)]
    assert [(group.operation, group.tasks) for group in groups] == [
        ("metadata", ()),
        ("indices", ()),
    ]
    assert {group.change_source for group in groups} == {ChangeSourceKind.NONE}


async def test_the_same_metadata_written_again_is_no_commit(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1))
    follower = await Follower.open(writer.location, "latest")
    writer.store_metadata()
    assert await follower.source.latest_offset(follower.at, follower.limit) == follower.at


async def test_an_update_of_a_msgpack_dataset_counts_by_its_json(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path, suffix="msgpack.zstd")
    writer.commit(rows(1))
    follower = await Follower.open(writer.location)
    assert inserted(await follower.rest()) == counted(rows(1))
    writer.commit(rows(2))
    assert inserted(await follower.rest()) == counted(rows(2))
    stale = writer.metadata_path.read_bytes()
    writer.suffix = "json"
    writer.commit(rows(3))
    assert (tmp_path / "ds.by-dataset-metadata.msgpack.zstd").read_bytes() == stale
    assert inserted(await follower.rest()) == counted(rows(3))


async def test_metadata_that_is_gone_for_a_while_is_the_same_dataset(tmp_path: Path) -> None:
    store, ledger = tmp_path / "store", tmp_path / "ledger"
    writer = DatasetWriter(store)
    writer.commit(rows(1))
    follower = await Follower.open(writer.location, ledger=ledger)
    await follower.rest()
    content = writer.metadata_path.read_bytes()
    writer.metadata_path.unlink()
    with pytest.raises(TableRecreatedError):
        await follower.step()
    writer.metadata_path.write_bytes(content)
    again = await opened(writer.location, ledger=ledger)
    assert await again.latest_offset(follower.at, follower.limit) == follower.at


async def test_rows_collected_before_they_were_read_are_a_gap(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1))
    follower = await Follower.open(writer.location, "latest")
    writer.commit(rows(2), without=lambda _: True)
    writer.collect_garbage()
    with pytest.raises(MissingVersionError) as error:
        await follower.step()
    assert error.value.code == "files_collected"


async def test_a_file_that_goes_between_plan_and_reading_is_a_gap(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1))
    follower = await Follower.open(writer.location, "latest")
    writer.commit(without=lambda _: True)
    end = await follower.source.latest_offset(follower.at, follower.limit)
    [group] = [group async for group in follower.source.plan(follower.at, end)]
    writer.collect_garbage()
    with pytest.raises(MissingVersionError):
        list(follower.source.read(group.tasks[0], limit=DEFAULT_BATCH_LIMIT))


async def test_a_file_that_the_metadata_names_and_is_not_there_is_damage(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1))
    for path in writer.location.rglob("*.parquet"):
        path.unlink()
    follower = await Follower.open(writer.location)
    with pytest.raises(MissingDataFileError):
        await follower.step()


async def test_a_change_feed_is_refused(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit(rows(1))
    with pytest.raises(UnsupportedFeatureError):
        await opened(writer.location, changes=ChangeMode.CDF)


async def test_another_process_repeats_the_same_difference(tmp_path: Path) -> None:
    store, ledger = tmp_path / "store", tmp_path / "ledger"
    writer = DatasetWriter(store, partition_on=["name"])
    writer.commit(rows(1, 2, 3))
    follower = await Follower.open(writer.location, "latest", ledger=ledger)
    writer.commit(rows(4, 5), without=lambda label: "n1" in label)
    start = follower.at
    end = await follower.source.latest_offset(start, follower.limit)
    planned = [group async for group in follower.source.plan(start, end)]
    # Killed here: nothing was acknowledged, and the dataset has changed since.
    writer.commit(rows(6), without=lambda label: "n4" in label)
    again = await opened(writer.location, ledger=ledger)
    limit = ReadLimit(max_files=3)
    assert await again.latest_offset(start, limit) == end
    assert [group async for group in again.plan(start, end)] == planned


@pytest.mark.parametrize("more", [0, 1, 2])
async def test_a_ledger_restored_from_an_older_copy_is_a_gap(tmp_path: Path, more: int) -> None:
    store, ledger, copy = tmp_path / "store", tmp_path / "ledger", tmp_path / "copy"
    writer = DatasetWriter(store)
    writer.commit(rows(0))
    follower = await Follower.open(writer.location, ledger=ledger)
    await follower.rest()
    shutil.copytree(ledger, copy)
    writer.commit(rows(1))
    await follower.rest()
    writer.commit(rows(2))
    await follower.rest()
    # As many states are observed again, but other ones.
    for number in range(more):
        writer.commit(rows(10 + number))
        await Follower.open(writer.location, ledger=copy)
    again = await opened(writer.location, ledger=copy)
    with pytest.raises(MissingVersionError):
        await again.latest_offset(follower.at, follower.limit)


async def test_a_ledger_of_another_dataset_is_refused(tmp_path: Path) -> None:
    one, other = DatasetWriter(tmp_path / "store", "a"), DatasetWriter(tmp_path / "store", "b")
    one.commit(rows(1))
    other.commit(rows(2))
    await Follower.open(one.location, ledger=tmp_path / "ledger")
    with pytest.raises(ConfigError):
        await opened(other.location, ledger=tmp_path / "ledger")


async def test_two_processes_count_the_same_states(tmp_path: Path) -> None:
    store, ledger = tmp_path / "store", tmp_path / "ledger"
    writer = DatasetWriter(store)
    writer.commit(rows(0))
    one = await Follower.open(writer.location, "latest", ledger=ledger)
    other = await Follower.open(writer.location, "latest", ledger=ledger)
    assert one.at == other.at
    ends = [one.at]
    for number in range(1, 4):
        writer.commit(rows(number))
        ends = [
            await each.source.latest_offset(each.at, each.limit)
            for each in random.Random(number).sample([one, other], 2)
        ]
        assert ends[0] == ends[1]
    assert [
        inserted(each.source.read(task, DEFAULT_BATCH_LIMIT))
        for each in (one, other)
        async for group in each.source.plan(each.at, ends[0])
        for task in group.tasks
    ] == [counted(rows(number)) for number in (1, 2, 3)] * 2


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("partition_on", [(), ("part",), ("part", "name")])
async def test_a_snapshot_and_the_changes_are_the_next_snapshot(
    tmp_path: Path, number: int, partition_on: tuple[str, ...]
) -> None:
    """The law, on random histories; unchanged rows never come, on either side."""
    chance = random.Random(number)
    schema = pa.schema(
        [
            pa.field("part", pa.int64()),
            pa.field("name", pa.string()),
            pa.field("value", pa.float64()),
            pa.field("list", pa.list_(pa.int64())),
        ]
    )
    writer = DatasetWriter(tmp_path / "store", schema=schema, partition_on=partition_on)

    def some(count: int) -> Rows:
        return [
            {
                "part": chance.randrange(3),
                "name": chance.choice(["a b", "ä/ö=%", "c"]),
                "value": chance.choice([0.5, None, float("nan"), -0.0]),
                "list": chance.choice([None, [], [1, 2]]),
            }
            for _ in range(count)
        ]

    writer.commit(some(5))
    limit = ReadLimit(max_files=chance.choice([1, 2, 100]))
    follower = await Follower.open(writer.location, ledger=tmp_path / "ledger", limit=limit)
    state = inserted(await follower.rest())
    for _ in range(6):
        gone = {label for label in writer.partitions if chance.random() < 0.5}
        writer.commit(some(chance.randrange(6)), without=gone.__contains__)
        found = await follower.rest()
        assert not (deleted(found) & inserted(found)), "unchanged rows cancel"
        state.subtract(deleted(found))
        state.update(inserted(found))
        whole = await Follower.open(writer.location)
        assert +state == inserted(await whole.rest())
        assert min(state.values(), default=0) >= 0
