"""`tailerd growth`: figures of the log, and lines through them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Version
from tailerd.cli.growth import count_commits, describe_unusual, draw_bars, resample
from tailerd.errors import UsageError
from tailerd.formats.growth import (
    Point,
    TableSize,
    count_optimized,
    extrapolate,
    find_unusual,
    measure_spans,
    trace_back,
)
from tailerd.formats.inspection import CommitDescription
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder

DAY = 86_400_000
MIB = 1024**2


def commit(
    day: int, added: int | None, removed: int | None = 0, **fields: int
) -> CommitDescription:
    return CommitDescription(
        version=Version(day),
        timestamp_ms=day * DAY,
        operation="WRITE",
        files_added=fields.get("files_added", 1),
        files_removed=fields.get("files_removed", 0),
        bytes_added=added,
        bytes_removed=removed,
        change_files=0,
        change_bytes=0,
        changes="files",
    )


def table(size: int | None, files: int | None) -> TableSize:
    return TableSize(version=Version(9), size_bytes=size, num_files=files, num_rows=None)


def sizes(points: Sequence[Point]) -> list[tuple[int, int]]:
    return [(point.size_bytes, point.num_files) for point in points]


def test_sizes_are_traced_back_from_that_of_now() -> None:
    commits = [commit(0, 100), commit(1, 50), commit(2, 30, 100, files_removed=1)]
    assert sizes(trace_back(table(80, 2), commits)) == [(100, 1), (150, 2), (80, 2)]
    # Before a commit that was not counted nothing is known.
    unknown = [commit(0, 1), commit(1, None, None), commit(2, 10)]
    assert sizes(trace_back(table(80, 2), unknown)) == [(70, 1), (80, 2)]
    for now, found in ((table(None, 1), commits), (table(1, None), commits), (table(1, 1), [])):
        with pytest.raises(UsageError, match="does not show its size"):
            trace_back(now, found)


def test_a_span_is_measured_where_the_commits_reach_back_so_far() -> None:
    commits = [commit(day, 10) for day in range(9)]
    points = trace_back(table(90, 9), commits)
    found = measure_spans(points, commits, 8 * DAY)
    assert found["last day"] == {"size_bytes": 10, "num_files": 1, "commits": 1}
    assert found["last 7 days"] == {"size_bytes": 70, "num_files": 7, "commits": 7}
    assert "last 30 days" not in found


def test_the_forecast_is_a_line_and_needs_an_hour() -> None:
    points = [
        Point(timestamp_ms=0, size_bytes=100, num_files=10),
        Point(timestamp_ms=10 * DAY, size_bytes=200, num_files=5),
    ]
    found = extrapolate(points, 10 * DAY)
    assert found["in 30 days"] == {"size_bytes": 500, "num_files": 0}
    assert found["in 90 days"]["size_bytes"] == 1100
    assert extrapolate(points, DAY // 25) == {}
    assert extrapolate(points[:1], 10 * DAY) == {}


def test_commits_far_above_the_median_are_unusual() -> None:
    usual = [commit(day, 10) for day in range(8)]
    assert find_unusual(usual) == []
    [found] = find_unusual([*usual, commit(8, 500)])
    assert (found.version, found.kind, found.value, found.times_median) == (8, "bytes", 500, 50)
    assert describe_unusual(found) == (
        "version 8 (WRITE, 1970-01-09 00:00) added 500 B, 50 times the median"
    )
    # Too few to know the usual size.
    assert find_unusual([commit(0, 1), commit(1, 500)]) == []


def test_many_small_files_are_unusual_also_where_the_bytes_are_not() -> None:
    [found] = find_unusual([*(commit(day, 10) for day in range(8)), commit(8, 10, files_added=40)])
    assert (found.version, found.kind, found.times_median) == (8, "files", 40)
    assert "added 40 files" in describe_unusual(found)


def test_an_hour_with_far_more_commits_is_marked_at_its_first() -> None:
    usual = [commit(day, 10) for day in range(8)]
    hour = [replace(commit(100 + number, 10), timestamp_ms=8 * DAY) for number in range(30)]
    [found] = find_unusual([*usual, *hour])
    assert (found.version, found.kind, found.value) == (100, "commits", 30)
    assert "began an hour with 30 commits" in describe_unusual(found)


@pytest.mark.parametrize(
    ("size", "files", "left"),
    [(256 * MIB, 100, 2), (1, 2, 1), (256 * MIB, 2, None), (10, 1, None), (0, 0, None)],
)
def test_small_files_are_counted_as_optimize_would_leave_them(
    size: int, files: int, left: int | None
) -> None:
    assert count_optimized(Point(timestamp_ms=0, size_bytes=size, num_files=files)) == left


def test_bars_have_one_width_also_of_a_single_commit() -> None:
    point = Point(timestamp_ms=5, size_bytes=1, num_files=1)
    assert set(draw_bars(resample([point], [1]))) == {"▁"}
    assert sum(count_commits([commit(3, 1)])) == 1
    assert draw_bars([0, 7, 14]) == "▁▄█" or draw_bars([0, 7, 14]) == "▁▅█"


def test_a_table_is_drawn_and_told_to_scripts(tmp_path: Path, command: Commands) -> None:
    builder = TableBuilder(tmp_path / "orders")
    for number in range(3):
        builder.append([{"id": number, "name": "x"}])
    ran = command("growth", builder.folder)
    assert (ran.status, ran.errors) == (0, "")
    first, _, size, files, commits = ran.output.splitlines()[:5]
    assert first.startswith("version 2: ")
    assert "3 files, 3 rows" in first
    assert size.split()[1][-1] == "█"
    assert files.endswith("1 to 3")
    assert "3 since " in commits
    found = json.loads(command("growth", builder.folder, "--json").output)
    assert (found["num_files"], found["commits"]) == (3, 3)
