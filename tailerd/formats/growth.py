"""How a table grew, from the commits of its log, and how it goes on."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import show_ms
from tailerd.errors import UsageError
from tailerd.formats.inspection import CommitDescription, TableInspection

COMMITS = 1000
"""Number of commits that are looked at by default, the newest."""
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_SPANS = {"last day": _DAY_MS, "last 7 days": 7 * _DAY_MS, "last 30 days": 30 * _DAY_MS}
_FORECAST_DAYS = (30, 90)
_SHORTEST_MS = _HOUR_MS
"""History that a forecast needs."""
_UNUSUAL = 10
"""Times the median, from which a commit or an hour is unusual."""
_ENOUGH_COMMITS = 8
_ENOUGH_HOURS = 8
_SHOWN_COMMITS = 3
"""Of each kind."""
_SMALL_BYTES = 32 * 1024**2
_GOOD_BYTES = 128 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The table after a commit."""

    timestamp_ms: int
    size_bytes: int
    num_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusualCommit:
    """A commit that added far more than others, or began an hour with far more commits.

    Attributes:
        time: When it was committed, ISO 8601.
        kind: `bytes`, `files` or `commits`.
        value: How much it added, or the number of commits in the hour.
        times_median: How many times the median that is.
    """

    version: int
    time: str
    operation: str | None
    kind: str
    value: int
    times_median: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a table grew and may go on.

    Attributes:
        since: When the first of the commits was made, ISO 8601.
        commits: Number of commits that were looked at.
        grown: Bytes, files and commits of spans such as `last day`, if the commits cover them.
        forecast: Bytes and files, such as `in 30 days`; empty before an hour is known.
        unusual_commits: The most unusual of each kind.
        files_after_optimize: How many files OPTIMIZE would leave; None if they are large enough.
    """

    version: int
    size_bytes: int
    num_files: int
    num_rows: int | None
    since: str
    commits: int
    grown: Mapping[str, Mapping[str, int]]
    forecast: Mapping[str, Mapping[str, int]]
    unusual_commits: Sequence[UnusualCommit]
    files_after_optimize: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of a table as of a version; None if the format does not count it."""

    version: Version
    size_bytes: int | None
    num_files: int | None
    num_rows: int | None


async def list_commits(
    inspection: TableInspection, version: Version, limit: int
) -> list[CommitDescription]:
    """Return the commits up to a version among the newest `limit` of a log, oldest first."""
    found = [commit async for commit in inspection.history(limit)]
    return [commit for commit in found if commit.version <= version]


def assess_growth(
    size: TableSize, commits: Sequence[CommitDescription], points: Sequence[Point], now_ms: int
) -> Growth:
    """Return how a table grew, from its size, its commits, and the points traced from them."""
    now_ms = max(now_ms, points[-1].timestamp_ms)
    return Growth(
        version=size.version,
        size_bytes=points[-1].size_bytes,
        num_files=points[-1].num_files,
        num_rows=size.num_rows,
        since=show_ms(points[0].timestamp_ms),
        commits=len(commits),
        grown=measure_spans(points, commits, now_ms),
        forecast=extrapolate(points, now_ms),
        unusual_commits=find_unusual(commits),
        files_after_optimize=count_optimized(points[-1]),
    )


def trace_back(size: TableSize, commits: Sequence[CommitDescription]) -> list[Point]:
    """Return the table after each commit, oldest first.

    Raises:
        UsageError: The format does not count bytes and files, or there is no commit.
    """
    if size.size_bytes is None or size.num_files is None or not commits:
        raise UsageError("The log of this table does not show its size.")
    size_bytes, files, points = size.size_bytes, size.num_files, []
    for commit in reversed(commits):
        points.append(
            Point(timestamp_ms=commit.timestamp_ms, size_bytes=size_bytes, num_files=files)
        )
        if commit.bytes_added is None or commit.bytes_removed is None:
            break
        size_bytes -= commit.bytes_added - commit.bytes_removed
        files -= commit.files_added - commit.files_removed
    return points[::-1]


def measure_spans(
    points: Sequence[Point], commits: Sequence[CommitDescription], now_ms: int
) -> dict[str, dict[str, int]]:
    """Return the growth of each span that the points cover."""
    times = [point.timestamp_ms for point in points]
    found = {}
    for name, span_ms in _SPANS.items():
        at = bisect_right(times, now_ms - span_ms)
        if at:
            found[name] = {
                "size_bytes": points[-1].size_bytes - points[at - 1].size_bytes,
                "num_files": points[-1].num_files - points[at - 1].num_files,
                "commits": sum(commit.timestamp_ms > now_ms - span_ms for commit in commits),
            }
    return found


def extrapolate(points: Sequence[Point], now_ms: int) -> dict[str, dict[str, int]]:
    """Return size and files in some days, by the average growth; empty if the points are few."""
    span_ms = now_ms - points[0].timestamp_ms
    if len(points) < 2 or span_ms < _SHORTEST_MS:
        return {}
    first, last = points[0], points[-1]
    found = {}
    for days in _FORECAST_DAYS:
        share = days * _DAY_MS / span_ms
        size = last.size_bytes + share * (last.size_bytes - first.size_bytes)
        files = last.num_files + share * (last.num_files - first.num_files)
        later = {"size_bytes": max(0, round(size)), "num_files": max(0, round(files))}
        found[f"in {days} days"] = later
    return found


def find_unusual(commits: Sequence[CommitDescription]) -> list[UnusualCommit]:
    """Return the commits that added far more bytes or files than others, and unusual hours.

    Of an hour with far more commits than others, its first commit is returned.
    """
    by_bytes = [(commit, commit.bytes_added or 0) for commit in commits]
    by_files = [(commit, commit.files_added) for commit in commits]
    first: dict[int, CommitDescription] = {}
    for commit in commits:
        first.setdefault(commit.timestamp_ms // _HOUR_MS, commit)
    hours = Counter(commit.timestamp_ms // _HOUR_MS for commit in commits)
    by_hour = [(first[hour], number) for hour, number in hours.items()]
    return [
        *_far_above("bytes", by_bytes, _ENOUGH_COMMITS),
        *_far_above("files", by_files, _ENOUGH_COMMITS),
        *_far_above("commits", by_hour, _ENOUGH_HOURS),
    ]


def _far_above(
    kind: str, values: Sequence[tuple[CommitDescription, int]], enough: int
) -> list[UnusualCommit]:
    """Return the commits whose values are far above the median, the largest first."""
    known = [value for _, value in values if value]
    if len(known) < enough:
        return []
    median = statistics.median(known)
    found = [(commit, value) for commit, value in values if value >= _UNUSUAL * median]
    found.sort(key=lambda each: -each[1])
    return [
        UnusualCommit(
            version=commit.version,
            time=show_ms(commit.timestamp_ms),
            operation=commit.operation,
            kind=kind,
            value=value,
            times_median=round(value / median),
        )
        for commit, value in found[:_SHOWN_COMMITS]
    ]


def count_optimized(now: Point) -> int | None:
    """Return how many files OPTIMIZE would leave; None if the files are large enough."""
    good = -(-now.size_bytes // _GOOD_BYTES)
    is_small = now.num_files > 1 and now.size_bytes / now.num_files < _SMALL_BYTES
    return max(1, good) if is_small and good < now.num_files else None
