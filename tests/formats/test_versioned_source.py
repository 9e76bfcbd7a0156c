"""What the source of every format adds to the versions that a log describes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.change_task import ChangeType, TaskGroup
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import CorruptLogError, PathOutsideTableError
from tailerd.formats import versioned_source
from tailerd.formats.base import OpenRequest
from tailerd.formats.versioned_source import VersionedSource
from tailerd.storage.links import AllowedPaths
from tailerd.storage.table_location import locate_table
from tests.doubles.memory_format import MemoryLog, MemoryReader, MemoryStep, MemoryTable

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**15)


class Damaged(MemoryLog):
    """Version 20 cannot be read."""

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> MemoryStep | None:
        if at.version == 20:
            raise CorruptLogError("Version 20 is damaged.")
        return await super().commit(at, state, end)


class Ageless(MemoryLog):
    """Version 20 has a time that no timestamp can hold."""

    async def commit(self, at: Offset, state: str, end: Offset | None = None) -> MemoryStep | None:
        step = await super().commit(at, state, end)
        if step is None or at.version != 20:
            return step
        return replace(step, timestamp_us=2**63)


async def opened(
    location: Path, commits: Sequence[int], log: type[MemoryLog] = MemoryLog
) -> VersionedSource:
    """Return the source of a table with commits of so many rows, two of them in a task."""
    table, number = MemoryTable("one", {}), 0
    for rows in commits:
        table.commit(*((ChangeType.INSERT.value, number + n, "x") for n in range(rows)))
        number += rows
    table.save(location)
    found = log(locate_table(str(location)), OpenRequest())
    await found.refresh()
    return VersionedSource(found, MemoryReader(), OpenRequest())


@pytest.mark.parametrize(
    ("max_files", "expected"),
    [
        (10, (40, 0)),  # all commits fit
        (3, (30, 0)),  # the third does not fit the rest
        (2, (20, 0)),  # the first fits, and nothing more
        (1, (10, 1)),  # the first does not fit, and is split
    ],
)
async def test_a_step_has_whole_commits_and_splits_only_the_first(
    tmp_path: Path, max_files: int, expected: tuple[int, int]
) -> None:
    source = await opened(tmp_path, [4, 2, 6])
    start = await source.initial_offset("10")
    end = await source.latest_offset(start, ReadLimit(max_files=max_files))
    assert (end.version, end.position) == expected


async def test_what_comes_before_a_damaged_commit_is_delivered_first(tmp_path: Path) -> None:
    source = await opened(tmp_path, [1, 1, 1], Damaged)
    end = await source.latest_offset(await source.initial_offset("10"), EVERYTHING)
    assert end.version == 20
    with pytest.raises(CorruptLogError):
        await source.latest_offset(end, EVERYTHING)


async def test_a_plan_delivers_the_groups_before_a_damaged_commit(tmp_path: Path) -> None:
    source = await opened(tmp_path, [1, 1, 1])
    start = await source.initial_offset("10")
    end = await source.latest_offset(start, EVERYTHING)
    damaged = await opened(tmp_path, [1, 1, 1], Damaged)
    groups = damaged.plan(start, end)
    assert (await anext(groups)).version == 10
    with pytest.raises(CorruptLogError):
        await anext(groups)


async def test_a_commit_without_a_possible_time_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = await opened(tmp_path, [1, 1, 1], Ageless)
    end = await source.latest_offset(await source.initial_offset("10"), EVERYTHING)
    assert end.version == 20
    with pytest.raises(CorruptLogError, match=r"Version 20 .* has the time 9223372036854775 ms"):
        await source.latest_offset(end, EVERYTHING)


async def test_links_are_checked_before_a_group_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of several groups together; the groups before a bad one are still delivered."""
    checked: list[str] = []

    def check(_: AllowedPaths, files: Iterable[str]) -> None:
        checked.extend(files)
        if checked[-1] == "40.1":
            raise PathOutsideTableError("It is outside.")

    monkeypatch.setattr(versioned_source, "GROUP_TASKS", 2)
    monkeypatch.setattr(
        MemoryStep, "local_files", lambda _, tasks: [f"{t.version}.{t.position}" for t in tasks]
    )
    source = await opened(tmp_path, [1, 1, 1, 6])
    start = await source.initial_offset("10")
    end = await source.latest_offset(start, EVERYTHING)
    # The store, which reads the table's own file, checks that too.
    monkeypatch.setattr(AllowedPaths, "check", check)
    delivered: list[str] = []
    with pytest.raises(PathOutsideTableError):
        await deliver(source.plan(start, end), delivered, checked)
    assert delivered == ["10.0", "20.0", "30.0"]


async def deliver(
    groups: AsyncIterator[TaskGroup], delivered: list[str], checked: Sequence[str]
) -> None:
    async for group in groups:
        delivered += [f"{task.version}.{task.position}" for task in group.tasks]
        assert delivered == checked[: len(delivered)]


async def test_a_snapshot_is_a_step_of_its_own(tmp_path: Path) -> None:
    source = await opened(tmp_path, [3, 3])
    start = await source.offset_at((await source.initial_offset("10")).version, Phase.SNAPSHOT)
    end = await source.latest_offset(start, EVERYTHING)
    assert (end.version, end.phase, end.position) == (20, Phase.FOLLOW, 0)


async def test_groups_are_bounded_and_join_without_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned_source, "GROUP_TASKS", 2)
    source = await opened(tmp_path, [9, 3])
    start = await source.initial_offset("10")
    end = await source.latest_offset(start, EVERYTHING)
    groups = [group async for group in source.plan(start, end)]
    assert [len(group.tasks) for group in groups] == [2, 2, 1, 2]
    assert [group.start for group in groups] == [start, *(group.end for group in groups[:-1])]
    assert groups[-1].end == end
