"""Rows 16 to 19 of the corners: when a commit happened, and where a time begins."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import CorruptLogError, UsageError
from tests.cli.commands import Commands
from tests.tables.builder import IN_COMMIT_TIMESTAMPS, START_MS, TableBuilder
from tests.tables.feed import EVERYTHING, changes, list_rows, read_batches
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def ms(time: datetime.datetime) -> int:
    return (time - EPOCH) // datetime.timedelta(milliseconds=1)


def moment(time_ms: float) -> str:
    return (EPOCH + datetime.timedelta(milliseconds=time_ms)).isoformat()


def times(rows: list[dict[str, Any]]) -> dict[int, int]:
    return {row["_commit_version"]: ms(row["_commit_timestamp"]) - START_MS for row in rows}


def dated(folder: Path, *offsets_ms: int, **options: Any) -> TableBuilder:
    """A table whose commits have these file times, in milliseconds after the start."""
    table = TableBuilder(folder, **options)
    for number, offset in enumerate(offsets_ms):
        table.append([{"id": number, "name": ""}], mtime_ms=START_MS + offset)
    return table


async def test_row_16_without_in_commit_timestamps_the_time_is_the_files(tmp_path: Path) -> None:
    table = dated(tmp_path, 0, 50)
    # What the commit says of itself does not count.
    table.commit(
        {"commitInfo": {"timestamp": 1, "operation": "WRITE"}},
        table.data_file([{"id": 9, "name": ""}]),
        mtime_ms=START_MS + 70,
        commit_info=False,
    )
    assert times(await changes(tmp_path)) == {0: 0, 1: 50, 2: 70}


async def test_row_16_in_commit_timestamps_count_from_the_version_that_enables_them(
    tmp_path: Path,
) -> None:
    table = dated(tmp_path, 0, 1000)
    table.properties = {
        **IN_COMMIT_TIMESTAMPS,
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": str(START_MS + 5000),
    }
    table.commit(
        table.metadata(),
        table.data_file([{"id": 2, "name": ""}]),
        mtime_ms=START_MS + 1,
        in_commit_ms=START_MS + 5000,
    )
    table.append([{"id": 3, "name": ""}], mtime_ms=START_MS, in_commit_ms=START_MS + 6000)
    assert times(await changes(tmp_path)) == {0: 0, 1: 1000, 2: 5000, 3: 6000}
    # Wherever reading starts.
    for start in range(4):
        found = times(await changes(tmp_path, str(start)))
        assert found == {v: t for v, t in {0: 0, 1: 1000, 2: 5000, 3: 6000}.items() if v >= start}
    source = await open_delta(str(tmp_path))
    for time, version in {0: 0, 1: 1, 1000: 1, 1001: 2, 4999: 2, 5000: 2, 5001: 3, 6000: 3}.items():
        assert (await source.initial_offset(moment(START_MS + time))).version == version
    latest = await source.initial_offset("latest")
    assert await source.initial_offset(moment(START_MS + 6001)) == latest


@pytest.mark.parametrize("where", ["second", "absent", "without it"])
async def test_row_16_a_commit_that_must_carry_its_time_and_does_not_is_an_error(
    tmp_path: Path, where: str
) -> None:
    table = TableBuilder(tmp_path, properties=IN_COMMIT_TIMESTAMPS)
    table.append([{"id": 1, "name": ""}])
    add = table.data_file([{"id": 2, "name": ""}])
    info = {"commitInfo": {"inCommitTimestamp": START_MS, "operation": "WRITE"}}
    if where == "without it":
        del info["commitInfo"]["inCommitTimestamp"]
    actions = {"second": [add, info], "absent": [add], "without it": [info, add]}[where]
    table.commit(*actions, commit_info=False)
    with pytest.raises(CorruptLogError, match="Version 1 has no inCommitTimestamp"):
        await changes(tmp_path, "1")


async def test_row_17_times_grow_by_at_least_a_millisecond(tmp_path: Path) -> None:
    dated(tmp_path, 1000, 1000, 500, 2000, -9000)
    expected = {0: 1000, 1: 1001, 2: 1002, 3: 2000, 4: 2001}
    assert times(await changes(tmp_path)) == expected
    for start in range(5):
        found = times(await changes(tmp_path, str(start)))
        assert found == {v: t for v, t in expected.items() if v >= start}


COPIED = {
    "all at once": lambda n: 0,
    "backward": lambda n: -n * 10,
    "one jump": lambda n: -n or 900,
}


@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.parametrize("checkpoint", [None, 120])
async def test_row_17_a_version_has_one_time_wherever_reading_starts(
    tmp_path: Path, kind: str, checkpoint: int | None
) -> None:
    table = dated(tmp_path, *map(COPIED[kind], range(130)))
    if checkpoint is not None:
        table.checkpoint(checkpoint)
    expected = times(await changes(tmp_path))
    for start in (1, 99, 100, 101, 129):
        assert times(await changes(tmp_path, str(start)))[129] == expected[129]
        assert times(await changes(tmp_path, str(start)))[start] == expected[start]
    assert expected[129] == expected[0] + 129
    [snapshot] = {row["_commit_timestamp"] for row in await changes(tmp_path, "snapshot")}
    assert ms(snapshot) - START_MS == expected[129]


async def test_row_17_a_version_has_one_time_whether_it_was_followed_or_read_later(
    tmp_path: Path,
) -> None:
    table = dated(tmp_path, *([0] * 102))
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("latest")
    followed: dict[int, int] = {}
    for number in range(5):
        table.append([{"id": number, "name": ""}], mtime_ms=START_MS - number)
        await source.backlog(at)
        end = await source.latest_offset(at, EVERYTHING)
        followed |= times(list_rows(await read_batches(source, at, end)))
        await source.commit(end)
        at = end
    later = times(await changes(tmp_path))
    assert followed == {version: later[version] for version in range(102, 107)}


def test_row_17_every_command_tells_the_same_time(tmp_path: Path, command: Commands) -> None:
    dated(tmp_path, *([0] * 130))
    [row] = command.tail(tmp_path, "--from", 129).rows
    assert row["_commit_timestamp"] == "2024-01-01T00:00:00.129000Z"
    [inspected] = command("inspect", tmp_path, "--json").rows
    [commit] = command("history", tmp_path, "--limit", 1, "--json").rows
    assert inspected["timestamp_ms"] == commit["timestamp_ms"] == START_MS + 129


async def test_row_18_a_version_keeps_the_time_it_was_first_seen_with(tmp_path: Path) -> None:
    table = dated(tmp_path, 0, 1000)
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("1")
    end = await source.latest_offset(at, EVERYTHING)
    first = list_rows(await read_batches(source, at, end))
    table.commit_path(1).touch()
    await source.backlog(at)
    assert list_rows(await read_batches(source, at, end)) == first


@pytest.mark.parametrize(
    ("time", "version"),
    [(-5000, 0), (0, 0), (0.4, 1), (1, 1), (999, 1), (1000, 1), (1000.001, 2), (2000, 2)],
)
async def test_row_19_a_time_means_the_first_commit_at_or_after_it(
    tmp_path: Path, time: float, version: int
) -> None:
    dated(tmp_path, 0, 1000, 2000)
    source = await open_delta(str(tmp_path))
    assert (await source.initial_offset(moment(START_MS + time))).version == version


async def test_row_19_a_time_behind_every_commit_is_that_of_the_next(tmp_path: Path) -> None:
    dated(tmp_path, 0, 1000)
    source = await open_delta(str(tmp_path))
    assert (await source.initial_offset(moment(START_MS + 1001))).version == 2
    with pytest.raises(UsageError, match="in the future"):
        await source.initial_offset("2999-01-01")


def test_row_19_the_command_takes_times_in_any_zone_at_both_ends(
    tmp_path: Path, command: Commands
) -> None:
    dated(tmp_path, 0, 1000, 2000, 3000)
    for start, end in [
        ("2024-01-01T00:00:01", "2024-01-01T00:00:02Z"),
        ("2024-01-01T01:00:00.5+01:00", "2023-12-31T19:00:02.999-05:00"),
        ("1", "2024-01-01 00:00:02"),
        ("2024-01-01 00:00:00.001", "2"),
    ]:
        ran = command.tail(tmp_path, "--from", start, "--to", end)
        assert (ran.status, [row["id"] for row in ran.rows]) == (0, [1, 2]), ran.errors
    ran = command.tail(tmp_path, "--from", "2025-01-01")
    assert (ran.status, ran.output) == (0, "")
    ran = command.tail(tmp_path, "--from", "2999-01-01")
    assert (ran.status, ran.output) == (2, "")
    assert ran.errors.startswith("error[usage]: 2999-01-01T00:00:00+00:00 is in the future.")
    ran = command.tail(tmp_path, "--from", 0, "--to", "2023-12-31")
    assert (ran.status, ran.output) == (3, "")
