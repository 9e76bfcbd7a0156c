"""`tailerd growth`: how a table grew, from its log, and how it goes on."""

from __future__ import annotations

import asyncio
import statistics
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from tailerd.changefeed.points import show_ms
from tailerd.cli.completion import table_locations
from tailerd.cli.inspect import open_inspection
from tailerd.cli.output import print_object
from tailerd.cli.quantities import size_text
from tailerd.cli.table_options import NamedTable, of_configured_table
from tailerd.errors import UsageError
from tailerd.formats.inspection import CommitDescription, TableDescription

_EXAMPLES = """\b
Examples:
  tailerd growth /lake/orders
  tailerd growth /lake/orders --limit 10000
  tailerd growth orders --config tailerd.yaml --json
"""
_DAY_MS = 86_400_000
_SPANS = {"last day": _DAY_MS, "last 7 days": 7 * _DAY_MS, "last 30 days": 30 * _DAY_MS}
_FORECAST_DAYS = (30, 90)
_SHORTEST_MS = 3_600_000
"""History that a forecast needs."""
_WIDTH = 40
_BARS = "▁▂▃▄▅▆▇█"
_UNUSUAL = 10
"""Times the median of all commits, from which a commit is unusual."""
_ENOUGH_COMMITS = 8
_SHOWN_COMMITS = 3
_SMALL_BYTES = 32 * 1024**2
_GOOD_BYTES = 128 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The table after a commit."""

    timestamp_ms: int
    size_bytes: int
    num_files: int


@click.command("growth", epilog=_EXAMPLES)
@of_configured_table
@click.argument("table", shell_complete=table_locations)
@click.option(
    "--limit",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="Maximum number of commits to look at, the newest.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(table: NamedTable, limit: int, as_json: bool) -> None:
    """Draw how a table grew, with a forecast, unusual commits, and the cost of small files.

    Everything comes from the log: no data file is read, and no daemon is needed. The forecast is a
    line through the commits that were looked at, and needs an hour of them.
    """

    async def show() -> None:
        inspected = await open_inspection(table, is_strict=False)
        now = await inspected.inspection.describe()
        commits = [commit async for commit in inspected.inspection.history(limit)]
        points = trace_back(now, commits)
        now_ms = max(time.time_ns() // 1_000_000, points[-1].timestamp_ms)
        found: dict[str, Any] = {
            "version": now.version,
            "size_bytes": now.size_bytes,
            "num_files": now.num_files,
            "num_rows": now.num_rows,
            "since": show_ms(points[0].timestamp_ms),
            "commits": len(commits),
            "grown": measure_spans(points, commits, now_ms),
            "forecast": extrapolate(points, now_ms),
            "unusual_commits": find_unusual(commits),
            "files_after_optimize": count_optimized(points[-1]),
        }
        if as_json:
            print_object(found, as_json=True)
        else:
            for line in draw(found, points, commits):
                click.echo(line)

    asyncio.run(show())


def trace_back(now: TableDescription, commits: Sequence[CommitDescription]) -> list[Point]:
    """Return the table after each commit, oldest first.

    Raises:
        UsageError: The format does not count bytes and files, or there is no commit.
    """
    if now.size_bytes is None or now.num_files is None or not commits:
        raise UsageError("The log of this table does not show its size.")
    size, files, points = now.size_bytes, now.num_files, []
    for commit in reversed(commits):
        points.append(Point(timestamp_ms=commit.timestamp_ms, size_bytes=size, num_files=files))
        if commit.bytes_added is None or commit.bytes_removed is None:
            break
        size -= commit.bytes_added - commit.bytes_removed
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


def find_unusual(commits: Sequence[CommitDescription]) -> list[dict[str, object]]:
    """Return the commits that added far more than others, the largest first."""
    sizes = [commit.bytes_added for commit in commits if commit.bytes_added]
    if len(sizes) < _ENOUGH_COMMITS:
        return []
    median = statistics.median(sizes)
    found = [commit for commit in commits if (commit.bytes_added or 0) >= _UNUSUAL * median]
    found.sort(key=lambda commit: -(commit.bytes_added or 0))
    return [
        {
            "version": commit.version,
            "time": show_ms(commit.timestamp_ms),
            "operation": commit.operation,
            "bytes_added": commit.bytes_added,
            "times_median": round((commit.bytes_added or 0) / median),
        }
        for commit in found[:_SHOWN_COMMITS]
    ]


def count_optimized(now: Point) -> int | None:
    """Return how many files OPTIMIZE would leave; None if the files are large enough."""
    good = -(-now.size_bytes // _GOOD_BYTES)
    is_small = now.num_files > 1 and now.size_bytes / now.num_files < _SMALL_BYTES
    return max(1, good) if is_small and good < now.num_files else None


def draw(
    found: dict[str, Any], points: Sequence[Point], commits: Sequence[CommitDescription]
) -> Iterator[str]:
    """Yield the lines for people."""
    rows = "unknown rows" if found["num_rows"] is None else f"{found['num_rows']:,} rows"
    size, files = size_text(found["size_bytes"]), f"{found['num_files']:,} files"
    yield f"version {found['version']}: {size} in {files}, {rows}"
    yield ""
    first, last = points[0], points[-1]
    sizes = resample(points, [point.size_bytes for point in points])
    yield f"size     {draw_bars(sizes)}  {size_text(first.size_bytes)} to {size}"
    counts = resample(points, [point.num_files for point in points])
    yield f"files    {draw_bars(counts)}  {first.num_files:,} to {last.num_files:,}"
    since = found["since"][:16].replace("T", " ")
    yield f"commits  {draw_bars(count_commits(commits))}  {len(commits):,} since {since}"
    yield ""
    for name, grown in found["grown"].items():
        size = f"{'+' if grown['size_bytes'] >= 0 else ''}{size_text(grown['size_bytes'])}"
        yield f"{name:<13}{size:>12}  {grown['num_files']:+,} files, {grown['commits']:,} commits"
    for name, later in found["forecast"].items():
        yield f"{name:<13}{size_text(later['size_bytes']):>12}  {later['num_files']:,} files"
    for each in found["unusual_commits"]:
        yield (
            f"unusual: version {each['version']} ({each['operation'] or 'no operation'},"
            f" {each['time'][:16].replace('T', ' ')}) added {size_text(each['bytes_added'])},"
            f" {each['times_median']} times the median"
        )
    if (good := found["files_after_optimize"]) is not None:
        average = size_text(last.size_bytes / last.num_files)
        yield f"small files: {average} on average; OPTIMIZE would leave about {good:,}"


def resample(points: Sequence[Point], values: Sequence[int]) -> list[int]:
    """Return the values at evenly spaced times."""
    times = [point.timestamp_ms for point in points]
    step = (times[-1] - times[0]) / _WIDTH
    edges = (times[0] + step * (number + 1) for number in range(_WIDTH))
    return [values[bisect_right(times, edge) - 1] for edge in edges]


def count_commits(commits: Sequence[CommitDescription]) -> list[int]:
    """Return the number of commits in evenly long parts of the time."""
    first = commits[0].timestamp_ms
    span = max(1, commits[-1].timestamp_ms - first)
    counts = [0] * _WIDTH
    for commit in commits:
        counts[min(_WIDTH - 1, max(0, (commit.timestamp_ms - first) * _WIDTH // span))] += 1
    return counts


def draw_bars(values: Sequence[int]) -> str:
    """Return a bar for each value, the lowest one for the least."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((value - low) * scale)] for value in values)
