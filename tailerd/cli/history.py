"""`tailerd history`: one line per commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import click

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.points import show_ms
from tailerd.cli.allowed_paths import allow_path_option
from tailerd.cli.output import print_records, warn
from tailerd.errors import MissingVersionError, NotATableError
from tailerd.formats.allowed_places import allowed_places
from tailerd.formats.delta.changes.commit_window import CommitWindow
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.log_segment import LogListing

_EXAMPLES = """\b
Examples:
  tailerd history /lake/orders
  tailerd history /lake/orders --limit 5 --json
"""
_COLUMNS = (
    "version",
    "time",
    "operation",
    "files_added",
    "files_removed",
    "bytes_added",
    "bytes_removed",
    "changes",
)


@click.command("history", epilog=_EXAMPLES)
@click.argument("table")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Newest so many commits."
)
@allow_path_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(table: str, limit: int, allowed_paths: tuple[str, ...], as_json: bool) -> None:
    """Show what each commit did, newest last, and how its row changes are read.

    `changes` is cdc (change files), files (added and removed files, deletion vectors) or none.
    """
    reader = LogReader.at(table, allowed=allowed_places(allowed_paths))
    asyncio.run(_history(reader, limit, as_json))


async def _history(reader: LogReader, limit: int, as_json: bool) -> None:
    rows = [row async for row in commits_of(reader, limit)]
    print_records(rows, _COLUMNS, as_json=as_json)


async def commits_of(reader: LogReader, limit: int) -> AsyncIterator[Mapping[str, object]]:
    """Yield a description of the newest `limit` commits, oldest first.

    Those before the first version that can be rebuilt are left out, with a warning.

    Raises:
        NotATableError: There is no table.
        MissingVersionError: The log has a gap.
        TableError: A commit is damaged.
    """
    listing = await reader.list_log()
    head = listing.head_version
    if head is None:
        raise NotATableError(
            f"There is no Delta table at {reader.url}: its log holds no commit.",
            hint="Check the path; it is the folder that contains _delta_log.",
        )
    window = CommitWindow(reader, ChangeMode.AUTO)
    first = max(head - limit + 1, listing.earliest_commit or 0)
    await window.look_around(first)
    first = await _first_rebuilt(window, first, listing)
    for version in range(first, head + 1):
        found = await window.commit(version)
        plan = await window.plan(version)
        if found is None or plan is None:
            raise MissingVersionError(
                f"Version {version} is missing from the log, though version {head} is there.",
                hint="A gap means lost commits: restore the file from a backup.",
            )
        yield {
            "version": version,
            "time": show_ms(plan.timestamp_us // 1000),
            "timestamp_ms": plan.timestamp_us // 1000,
            "operation": plan.operation or None,
            **_tallies(found.commit),
            "changes": plan.kind.value,
        }
        window.forget_before(version)


async def _first_rebuilt(window: CommitWindow, wanted: int, listing: LogListing) -> int:
    """Return the first version from `wanted` on whose protocol and columns can be told.

    Raises:
        MissingVersionError: There is none.
        TableError: A commit is damaged.
    """
    first = wanted
    later = [version for version in sorted(listing.checkpoints) if version > wanted]
    while True:
        try:
            await window.plan(first)
            break
        except MissingVersionError:
            if not later:
                raise
            first = later.pop(0)
    if first > wanted:
        are = (
            f"Version {wanted} is"
            if first == wanted + 1
            else f"Versions {wanted} to {first - 1} are"
        )
        warn(
            MissingVersionError(
                f"{are} left out, because the log before was cleaned up: the first version that"
                f" can be rebuilt is {first}."
            )
        )
    return first


def _tallies(commit: Commit) -> dict[str, object]:
    return {
        "files_added": commit.added.files,
        "files_removed": commit.removed.files,
        "bytes_added": commit.added.size_bytes,
        "bytes_removed": commit.removed.size_bytes,
        "change_files": commit.change_files.files,
        "change_bytes": commit.change_files.size_bytes,
    }
