from __future__ import annotations

import random
from pathlib import Path

import pytest

from tailerd.errors import CorruptLogError, MissingVersionError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.time_travel import TimeAxis
from tailerd.storage.local import LocalStore
from tests.formats.delta.log_bodies import add
from tests.tables.builder import TableBuilder

ENABLED = "delta.enableInCommitTimestamps"
SINCE_VERSION = "delta.inCommitTimestampEnablementVersion"
SINCE_TIME = "delta.inCommitTimestampEnablementTimestamp"


async def axis_of(table: TableBuilder) -> TimeAxis:
    return await TimeAxis.read(LogReader(LocalStore(), str(table.folder)))


def with_times(folder: Path, *times: int) -> TableBuilder:
    table = TableBuilder(folder)
    for number, time in enumerate(times):
        actions = () if number else (table.protocol(), table.metadata())
        table.commit(*actions, add(f"f{number}"), mtime_ms=time)
    return table


async def check_everywhere(axis: TimeAxis, times: dict[int, int]) -> None:
    """Compare with looking at every version's time, near every one of them."""
    for near in times.values():
        for time in (near - 1, near, near + 1):
            later = [version for version in times if times[version] >= time]
            assert await axis.first_from(time) == (min(later) if later else None)
            earlier = [version for version in times if times[version] <= time]
            if earlier:
                assert await axis.last_until(time) == max(earlier)
            else:
                with pytest.raises(MissingVersionError, match="oldest is version"):
                    await axis.last_until(time)


async def test_a_time_means_the_first_commit_at_or_after_it(tmp_path: Path) -> None:
    axis = await axis_of(with_times(tmp_path, 1000, 2000, 3000))
    assert [await axis.first_from(time) for time in (0, 1000, 1001, 2000, 3000)] == [0, 0, 1, 1, 2]
    assert await axis.first_from(3001) is None


async def test_a_time_means_the_last_commit_at_or_before_it(tmp_path: Path) -> None:
    axis = await axis_of(with_times(tmp_path, 1000, 2000, 3000))
    assert [await axis.last_until(time) for time in (1000, 1999, 2000, 9999)] == [0, 0, 1, 2]
    with pytest.raises(MissingVersionError, match="oldest is version 0"):
        await axis.last_until(999)


async def test_file_times_that_jump_are_made_to_grow(tmp_path: Path) -> None:
    axis = await axis_of(with_times(tmp_path, 5000, 1000, 1000, 5001, 9000, 2000))
    times = {0: 5000, 1: 5001, 2: 5002, 3: 5003, 4: 9000, 5: 9001}
    assert {version: await axis.time_ms(version) for version in times} == times
    await check_everywhere(axis, times)


async def test_random_times_are_searched_as_they_would_be_one_by_one(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    axis = await axis_of(with_times(tmp_path, *(chance.randrange(1000, 1020) for _ in range(12))))
    await check_everywhere(axis, {version: await axis.time_ms(version) for version in range(12)})


async def test_a_cleaned_up_log_is_searched_from_its_oldest_commit(tmp_path: Path) -> None:
    table = with_times(tmp_path, 1000, 2000, 3000, 4000)
    table.checkpoint(2)
    for version in (0, 1):
        table.commit_path(version).unlink()
    axis = await axis_of(table)
    assert await axis.first_from(0) == 2
    with pytest.raises(MissingVersionError, match="oldest is version 2"):
        await axis.last_until(2000)


async def test_a_log_of_checkpoints_only_has_no_times(tmp_path: Path) -> None:
    table = with_times(tmp_path, 1000)
    table.checkpoint()
    table.commit_path(0).unlink()
    axis = await axis_of(table)
    with pytest.raises(MissingVersionError, match="no commits, only checkpoints"):
        await axis.first_from(0)


def with_in_commit_times(folder: Path, own: dict[int, int], files: list[int]) -> TableBuilder:
    """Write a table that has own times from the first version of `own` on."""
    table = TableBuilder(folder)
    start = min(own)
    for version, file_time in enumerate(files):
        actions = [add(f"f{version}")]
        if version == 0:
            actions += [table.protocol(), table.metadata()]
        if version == start:
            since = {SINCE_VERSION: str(start), SINCE_TIME: str(own[start])} if start else {}
            configuration = {ENABLED: "true", **since}
            actions = [
                action for action in actions if "metaData" not in action
            ] + [table.metadata(configuration=configuration)]  # fmt: skip
        table.commit(*actions, mtime_ms=file_time, in_commit_ms=own.get(version))
    return table


async def test_own_times_count_from_the_version_that_enabled_them(tmp_path: Path) -> None:
    own = {2: 7000, 3: 8000, 4: 8001}
    axis = await axis_of(with_in_commit_times(tmp_path, own, [1000, 2000, 90_000, 90_001, 5]))
    times = {0: 1000, 1: 2000, **own}
    assert {version: await axis.time_ms(version) for version in times} == times
    await check_everywhere(axis, times)


async def test_own_times_may_begin_before_the_file_times_end(tmp_path: Path) -> None:
    # The file times jumped ahead; each side is searched by its own times.
    own = {2: 1500, 3: 1600}
    axis = await axis_of(with_in_commit_times(tmp_path, own, [1000, 9000, 9001, 9002]))
    assert await axis.first_from(1400) == 1
    assert await axis.first_from(1500) == 2
    assert await axis.first_from(1550) == 3
    assert await axis.first_from(1601) is None
    assert await axis.last_until(1400) == 0
    assert await axis.last_until(1500) == 2
    assert await axis.last_until(99_999) == 3


async def test_own_times_from_the_beginning_need_no_boundary(tmp_path: Path) -> None:
    own = {0: 100, 1: 200, 2: 300}
    axis = await axis_of(with_in_commit_times(tmp_path, own, [900_000, 5, 6]))
    await check_everywhere(axis, own)


async def test_a_commit_without_its_own_time_is_refused_when_it_is_looked_at(
    tmp_path: Path,
) -> None:
    table = with_in_commit_times(tmp_path, {0: 100}, [1000])
    table.commit(add("x"), mtime_ms=2000)
    axis = await axis_of(table)
    with pytest.raises(CorruptLogError, match="Version 1 has no inCommitTimestamp"):
        await axis.first_from(150)
