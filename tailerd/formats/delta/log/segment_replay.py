"""Fetches the files of a log segment and feeds them to the replay, one group ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from tailerd.errors import (
    CorruptLogError,
    FileMissingError,
    TableError,
    TooLargeError,
    TornCommitError,
)
from tailerd.formats.delta.log.log_folder import ONE_GET_BYTES, LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.protocol.checkpoint import KEY_COLUMNS, OTHER_ACTIONS, PROBES
from tailerd.formats.delta.protocol.commit_file import slices
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_replay import LogReplay
from tailerd.formats.delta.protocol.log_segment import LogSegment
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.remedies import KEEP_CHECKPOINT

LARGE_COMMIT_BYTES = ONE_GET_BYTES
"""Commits above this are read in slices."""
_NOT_AS_EXPECTED = (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError)
"""Errors for columns of unexpected types: Arrow's kernels and conversions raise many kinds."""
_GROUP_FILES = 1024
# A commit too large for memory must be alone, so a group is not larger than such a commit.
_GROUP_BYTES = LARGE_COMMIT_BYTES


async def replay_segment(log: LogFolder, segment: LogSegment, *, with_files: bool) -> Snapshot:
    """Rebuild the version of a segment.

    Raises:
        DamagedCheckpointError: Its checkpoint cannot be used; another way may exist.
        CorruptLogError, TornCommitError: A commit is damaged.
        FileMissingError: A commit is missing.
    """
    replay = LogReplay(
        segment, with_files=with_files, root_url=log.url, memory_bytes=log.memory_bytes
    )
    await _feed_checkpoint(log, replay)
    await _feed_commits(log, replay)
    return replay.result()


class DamagedCheckpointError(Exception):
    """A checkpoint could not be used; another way may exist."""

    def __init__(self, damage: TableError) -> None:
        super().__init__(str(damage))
        self.damage = damage


def _as_damage(error: Exception, segment: LogSegment) -> TableError:
    if isinstance(error, TornCommitError):
        # Unlike a commit, a torn checkpoint stays torn: waiting does not help.
        return CorruptLogError(
            f"The checkpoint of version {segment.checkpoint_version} is torn: {error.message}",
            remedy=KEEP_CHECKPOINT,
        )
    if isinstance(error, TableError):
        return error
    return CorruptLogError(
        f"The checkpoint of version {segment.checkpoint_version} lacks a file: {error}",
        remedy="There is no other checkpoint and no complete log: restore the file from a backup.",
    )


async def _feed_checkpoint(log: LogFolder, replay: LogReplay) -> None:
    """Feed manifest, parts and sidecars; each is decoded in a worker thread."""
    try:
        while replay.is_checkpoint_open:
            for file in replay.next_files(_GROUP_FILES):
                if file.is_json:
                    body = await log.body_slices(file)
                    await asyncio.to_thread(replay.feed_lines, file, body)
                else:
                    await asyncio.to_thread(_feed_parquet, log, replay, file)
    except (CorruptLogError, TooLargeError, FileMissingError) as error:
        raise DamagedCheckpointError(_as_damage(error, replay.segment)) from error


def _feed_parquet(log: LogFolder, replay: LogReplay, file: LogFile) -> None:
    rows = CheckpointFile.open(log, file)
    try:
        actions = rows.rows_with(OTHER_ACTIONS, PROBES.values())
        replay.feed_rows(file, actions, rows.rows(KEY_COLUMNS) if replay.with_files else ())
    except _NOT_AS_EXPECTED as error:
        raise CorruptLogError(
            f"The checkpoint file {file.name} has columns of other types than a checkpoint's:"
            f" {error!r}.",
            remedy="Restore the file from a backup.",
        ) from error
    finally:
        rows.close()


async def _feed_commits(log: LogFolder, replay: LogReplay) -> None:
    """Feed commits in groups; while one group is replayed the next is fetched."""
    ahead = _fetch_group(log, replay)
    try:
        while ahead is not None:
            files, bodies = ahead[0], await ahead[1]
            ahead = _fetch_group(log, replay)
            if bodies is None:
                await _feed_large(log, replay, files[0])
            else:
                await asyncio.to_thread(_feed_group, replay, files, bodies)
    finally:
        if ahead is not None:
            ahead[1].cancel()


def _fetch_group(
    log: LogFolder, replay: LogReplay
) -> tuple[list[LogFile], asyncio.Task[list[bytes] | None]] | None:
    files = replay.next_files(_GROUP_FILES, _GROUP_BYTES)
    if not files:
        return None
    return files, asyncio.create_task(_fetch(log, files))


async def _fetch(log: LogFolder, files: list[LogFile]) -> list[bytes] | None:
    if files[0].size_bytes > LARGE_COMMIT_BYTES:
        return None
    return await log.store.get_many([log.resolve_path(file) for file in files])


async def _feed_large(log: LogFolder, replay: LogReplay, file: LogFile) -> None:
    scan = replay.begin_commit(file)
    async for chunk in log.chunks(file):
        await asyncio.to_thread(scan.feed, chunk)
    await asyncio.to_thread(replay.end_commit, file, scan)


def _feed_group(replay: LogReplay, files: Sequence[LogFile], bodies: Sequence[bytes]) -> None:
    for file, body in zip(files, bodies, strict=True):
        replay.feed_lines(file, slices(body))
