"""`tailerd growth`: how a table grew, from its log, and how it goes on."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from tailerd.cli.completion import table_locations
from tailerd.cli.inspect import open_inspection
from tailerd.cli.output import print_object
from tailerd.cli.quantities import size_text
from tailerd.cli.table_options import NamedTable, of_configured_table
from tailerd.formats.growth import (
    COMMITS,
    Growth,
    Point,
    TableSize,
    UnusualCommit,
    assess_growth,
    list_commits,
    trace_back,
)
from tailerd.formats.inspection import CommitDescription

_EXAMPLES = """\b
Examples:
  tailerd growth /lake/orders
  tailerd growth /lake/orders --limit 10000
  tailerd growth orders --config tailerd.yaml --json
"""
_WIDTH = 40
_BARS = "▁▂▃▄▅▆▇█"


@click.command("growth", epilog=_EXAMPLES)
@of_configured_table
@click.argument("table", shell_complete=table_locations)
@click.option(
    "--limit",
    type=click.IntRange(2),
    default=COMMITS,
    show_default=True,
    help="Maximum number of commits to look at, the newest.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(table: NamedTable, limit: int, as_json: bool) -> None:
    """Draw how a table grew, with a forecast, unusual commits, and the cost of small files.

    growth reads only the log and needs no daemon. The forecast continues the average growth, and
    needs commits of at least an hour.
    """

    async def show() -> None:
        inspected = await open_inspection(table, is_strict=False)
        now = await inspected.inspection.describe()
        size = TableSize(
            version=now.version,
            size_bytes=now.size_bytes,
            num_files=now.num_files,
            num_rows=now.num_rows,
        )
        commits = await list_commits(inspected.inspection, now.version, limit)
        points = trace_back(size, commits)
        found = assess_growth(size, commits, points, time.time_ns() // 1_000_000)
        if as_json:
            print_object(asdict(found), as_json=True)
        else:
            for line in draw(found, points, commits):
                click.echo(line)

    asyncio.run(show())


def draw(
    found: Growth, points: Sequence[Point], commits: Sequence[CommitDescription]
) -> Iterator[str]:
    """Yield the lines for people."""
    rows = "unknown rows" if found.num_rows is None else f"{found.num_rows:,} rows"
    size, files = size_text(found.size_bytes), f"{found.num_files:,} files"
    yield f"version {found.version}: {size} in {files}, {rows}"
    yield ""
    first, last = points[0], points[-1]
    sizes = resample(points, [point.size_bytes for point in points])
    yield f"size     {draw_bars(sizes)}  {size_text(first.size_bytes)} to {size}"
    counts = resample(points, [point.num_files for point in points])
    yield f"files    {draw_bars(counts)}  {first.num_files:,} to {last.num_files:,}"
    since = found.since[:16].replace("T", " ")
    yield f"commits  {draw_bars(count_commits(commits))}  {len(commits):,} since {since}"
    yield ""
    for name, grown in found.grown.items():
        size = f"{'+' if grown['size_bytes'] >= 0 else ''}{size_text(grown['size_bytes'])}"
        yield f"{name:<13}{size:>12}  {grown['num_files']:+,} files, {grown['commits']:,} commits"
    for name, later in found.forecast.items():
        yield f"{name:<13}{size_text(later['size_bytes']):>12}  {later['num_files']:,} files"
    for each in found.unusual_commits:
        yield f"unusual: {describe_unusual(each)}"
    if found.files_after_optimize is not None:
        average = size_text(last.size_bytes / last.num_files)
        yield (
            f"small files: {average} on average; OPTIMIZE would leave about"
            f" {found.files_after_optimize:,}"
        )


def describe_unusual(found: UnusualCommit) -> str:
    """Return the sentence about an unusual commit."""
    done = {
        "bytes": f"added {size_text(found.value)}",
        "files": f"added {found.value:,} files",
        "commits": f"began an hour with {found.value:,} commits",
    }[found.kind]
    when = found.time[:16].replace("T", " ")
    return (
        f"version {found.version} ({found.operation or 'no operation'}, {when}) {done},"
        f" {found.times_median} times the median"
    )


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
