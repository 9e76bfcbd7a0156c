"""Computes the offsets of a read from its options."""

from __future__ import annotations

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import MissingVersionError
from tailerd.formats.base import ChangeSource
from tailerd.spark.options import ReadOptions, naming

UNLIMITED = ReadLimit(max_files=2**62, max_bytes=2**62)
EARLIEST = "1970-01-01T00:00:00Z"
"""As a starting timestamp, it means the first commit that the log still has."""


async def starting_offset(
    source: ChangeSource,
    options: ReadOptions,
    *,
    snapshot_by_default: bool,
    end: Offset | None = None,
) -> Offset:
    """Return where a read begins.

    With a start, at that commit, or with `snapshot` at the rows of that version. Without one, at
    the rows of the newest version where a snapshot is requested or the default, else at the
    earliest commit of the log. A snapshot without a start is at most that of the last version
    before `end`.

    Raises:
        TableError, StorageError: As the source raises them.
    """
    if options.start:
        is_version = options.start.isdigit() or options.start == "latest"
        with naming("startingVersion" if is_version else "startingTimestamp", options.start):
            offset = await source.initial_offset(options.start)
            if not options.snapshot:
                return offset
            await _check_exists(source, offset.version)
        return await source.offset_at(offset.version, Phase.SNAPSHOT)
    wants_snapshot = snapshot_by_default if options.snapshot is None else options.snapshot
    found = await source.initial_offset("snapshot" if wants_snapshot else EARLIEST)
    if end is not None and wants_snapshot and end.version <= found.version:
        return await source.offset_at(source.version_before(end.version), Phase.SNAPSHOT)
    return found


async def _check_exists(source: ChangeSource, version: Version) -> None:
    head = source.version_before((await source.initial_offset("latest")).version)
    if version > head:
        raise MissingVersionError(
            f"Version {version} has no rows yet: the newest is {head}.",
            remedy=f"Give {head} or less, or leave snapshot out to wait for the commit.",
        )


async def ending_offset(source: ChangeSource, options: ReadOptions) -> Offset | None:
    """Return the offset after the inclusive end that the options name; None if they name none.

    Raises:
        UsageError: The timestamp is invalid, or before the first commit.
    """
    if not options.end:
        return None
    with naming("endingVersion" if options.end.isdigit() else "endingTimestamp", options.end):
        version = await source.end_version(options.end)
    return Offset(table_id=source.table_id, version=source.next_version(version))


async def batch_range(source: ChangeSource, options: ReadOptions) -> tuple[Offset, Offset]:
    """Return start and end of a batch read; a start at or after the end means no rows.

    A snapshot without a start is taken at the end, so `snapshot` with `endingVersion` reads the
    table of that version.
    """
    latest = await source.initial_offset("latest")
    given = await ending_offset(source, options)
    end = given if given is not None and given.is_before(latest) else latest
    if options.snapshot and not options.start:
        return await source.offset_at(source.version_before(end.version), Phase.SNAPSHOT), end
    start = await starting_offset(source, options, snapshot_by_default=False)
    return start, end


async def tasks_between(source: ChangeSource, start: Offset, end: Offset) -> list[ChangeTask]:
    """Return the change tasks of [start, end) in order."""
    return [task async for group in source.plan(start, end) for task in group.tasks]


def clamp_offset(offset: Offset, *, start: Offset, end: Offset | None) -> Offset:
    """Return `offset`, or `end` if that is smaller; never before `start`."""
    if end is None or not end.is_before(offset):
        return offset
    return end if start.is_before(end) else start
