"""A snapshot that is interrupted goes on after a restart, whatever became of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import LogCleanedUpError, MissingVersionError
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.versioned_source import VersionedSource
from tests.doubles.owned_state import owned_scratch
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


THREE_FILES = ReadLimit(max_files=3)


async def open_source(builder: TableBuilder, spool: Path | None) -> VersionedSource:
    return await open_delta(
        str(builder.folder), spool=None if spool is None else Spool(owned_scratch(spool))
    )


async def step(source: VersionedSource, start: Offset) -> tuple[Offset, list[int]]:
    """One delivery: its end, and its row ids."""
    end = await source.latest_offset(start, THREE_FILES)
    ids: list[int] = []
    async for group in source.plan(start, end):
        for task in group.tasks:
            for batch in source.read(task, BatchLimit()):
                ids += batch.rows.column("id").to_pylist()
    if end != start:
        await source.commit(end)
    return end, ids


def make_table(folder: Path, files: int) -> TableBuilder:
    builder = TableBuilder(folder)
    builder.create()
    for number in range(files):
        builder.append([{"id": number}])
    return builder


def clean_up(builder: TableBuilder) -> None:
    """Leave of the log what follows the snapshot, behind a checkpoint of it."""
    snapshot_version = 10
    builder.append([{"id": 100}])
    builder.checkpoint()
    builder.append([{"id": 101}])
    for version in range(snapshot_version + 1):
        builder.commit_path(version).unlink()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_a_snapshot_goes_on_after_its_log_was_cleaned_up(tmp_path: Path, steps: int) -> None:
    builder, spool = make_table(tmp_path / "t", 10), tmp_path / "spool"
    source = await open_source(builder, spool)
    offset = await source.initial_offset("snapshot")
    delivered: list[int] = []
    for _ in range(steps):
        offset, ids = await step(source, offset)
        delivered += ids
    assert (offset.version, offset.phase) == (10, Phase.SNAPSHOT)

    clean_up(builder)
    again = await open_source(builder, spool)
    while True:
        end, ids = await step(again, offset)
        if end == offset:
            break
        offset = end
        delivered += ids
    assert (len(delivered), sorted(delivered)) == (12, [*range(10), 100, 101])
    assert delivered[-2:] == [100, 101]
    assert not spool.exists()


async def test_a_log_cleaned_up_before_its_first_snapshot_is_listed_is_worth_another_look(
    tmp_path: Path,
) -> None:
    builder, spool = make_table(tmp_path / "t", 10), tmp_path / "spool"
    source = await open_source(builder, spool)
    clean_up(builder)
    with pytest.raises(LogCleanedUpError) as caught:
        await source.initial_offset("snapshot")
    assert caught.value.retryable
    again = await open_source(builder, spool)
    offset = await again.initial_offset("snapshot")
    _, ids = await step(again, offset)
    assert (offset.version, len(ids)) == (12, 3)


async def test_a_log_cleaned_up_while_a_snapshot_is_read_is_worth_another_look(
    tmp_path: Path,
) -> None:
    builder = make_table(tmp_path / "t", 10)
    source = await open_source(builder, None)
    offset, _ = await step(source, await source.initial_offset("snapshot"))
    clean_up(builder)
    with pytest.raises(LogCleanedUpError):
        await step(source, offset)
    with pytest.raises(MissingVersionError) as caught:
        await step(await open_source(builder, None), offset)
    assert not caught.value.retryable


async def test_spooled_and_logged_snapshots_have_the_same_steps(tmp_path: Path) -> None:
    builder = make_table(tmp_path / "t", 10)
    found = []
    for spool in (None, tmp_path / "spool"):
        source = await open_source(builder, spool)
        offset = await source.initial_offset("snapshot")
        steps = []
        while offset.phase is Phase.SNAPSHOT:
            offset, ids = await step(source, offset)
            steps.append((offset, ids))
        found.append(steps)
    assert found[0] == found[1]
    assert len(found[0]) == 4


async def test_a_new_snapshot_is_not_taken_from_an_old_spool(tmp_path: Path) -> None:
    builder, spool = make_table(tmp_path / "t", 2), tmp_path / "spool"
    first = await open_source(builder, spool)
    await first.initial_offset("snapshot")
    # Restored from a copy: the same table id and version, other files.
    for path in sorted(builder.log.iterdir()):
        path.unlink()
    other = TableBuilder(tmp_path / "t")
    other.create()
    other.append([{"id": 7}])
    other.append([{"id": 8}])
    again = await open_source(other, spool)
    _, ids = await step(again, await again.initial_offset("snapshot"))
    assert sorted(ids) == [7, 8]
