"""Deletes expired files from a log: commits, checkpoints, compactions, checksums, sidecars.

Nothing is deleted before the checkpoint that replaces it has been read and found complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tailerd.clock import Clock, SystemClock
from tailerd.errors import CorruptLogError, FileMissingError, LogChangedError
from tailerd.formats.delta.log.checkpoint_source import ROWS_AT_ONCE
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.log.publication import check_unchanged
from tailerd.formats.delta.log.segment_replay import DamagedCheckpointError, replay_segment
from tailerd.formats.delta.log.v2_manifest import named_sidecars
from tailerd.formats.delta.protocol.commit_timestamp import monotonic_file_times
from tailerd.formats.delta.protocol.log_path import (
    SIDECAR_FOLDER,
    LogFile,
    LogFileKind,
    is_sidecar_name,
    parse_log_path,
)
from tailerd.formats.delta.protocol.log_segment import LogListing, LogSegment
from tailerd.formats.delta.protocol.metadata_cleanup import (
    DAY_MS,
    LOG_CHANGED,
    CleanupPlan,
    cutoff_commit,
    cutoff_ms,
    expired_sidecars,
    midnight_before,
    plan_cleanup,
)
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.delta.protocol.writer_features import check_maintainable
from tailerd.storage.base import BATCH_FILES, delete_all
from tailerd.storage.output import sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """The result of a cleanup.

    Attributes:
        files: Names of deleted files relative to `_delta_log`, including sidecars.
        size_bytes: Of these.
        leftovers: Number of deleted unfinished files of crashed writers.
        oldest_version: As in the plan; None if its checkpoint is missing, which ends the cleanup.
        reason: Why no file, or no further one, was deleted.
    """

    files: tuple[str, ...]
    size_bytes: int
    leftovers: int
    oldest_version: int | None
    reason: str


async def _nothing_against() -> str:
    return ""


def _result(
    deleted: Sequence[LogFile],
    *,
    leftovers: int = 0,
    oldest_version: int | None = None,
    reason: str,
) -> CleanupResult:
    return CleanupResult(
        files=tuple(file.name for file in deleted),
        size_bytes=sum(file.size_bytes for file in deleted),
        leftovers=leftovers,
        oldest_version=oldest_version,
        reason=reason,
    )


class LogCleanup:
    """Cleans up one table's log.

    Args:
        reader: The table's log.
        clock: Determines which files have expired.
    """

    def __init__(self, reader: LogReader, *, clock: Clock | None = None) -> None:
        self._reader = reader
        self._clock: Clock = clock or SystemClock()

    async def plan(
        self,
        state: TableState,
        needed_from: int | None = None,
        *,
        required_by: str = "a pipeline",
        older_than_seconds: float | None = None,
        checked: CleanupPlan | None = None,
    ) -> CleanupPlan:
        """Decide what to delete.

        Args:
            state: Of the newest version.
            needed_from: The oldest version that must stay rebuildable; None if there is none.
            required_by: The reader that needs it, human-readable.
            older_than_seconds: Retention, if longer than the table's own.
            checked: An earlier plan; the checkpoint it keeps is not read again.

        Raises:
            ConfigError: `older_than_seconds` is shorter than the table's retention.
            UnsupportedFeatureError: The table requires an unsupported writer feature.
            LinkInPathError: The folder of the log or its sidecars is a symbolic link.
            CorruptLogError: The checkpoint that would replace the deleted files is damaged.
            StorageError: The log cannot be read.
        """
        check_maintainable(state)
        await self._reader.check_not_linked()
        # Before the listing: if the machine sleeps in between, new files must not count as old.
        cutoff = cutoff_ms(state, self._clock.now_ms(), older_than_seconds)
        files = await self._list()
        listing = LogListing.classify(files)
        links = await self._reader.linked_names(self._reader.path)
        newest = await self._newest_expired(state, listing, cutoff)
        # Files that are symbolic links belong to someone else: keep them.
        own = [file for file in files if file.name not in links]
        plan = plan_cleanup(state, listing, own, newest, needed_from, required_by)
        is_known = checked is not None and checked.stays == plan.stays
        if plan.oldest_version is not None and not is_known:
            await self._check_whole(listing, plan.oldest_version)
        return plan

    async def _list(self) -> list[LogFile]:
        return [
            file
            async for meta in self._reader.store.list_from(self._reader.path)
            if (file := parse_log_path(meta.name, meta.size_bytes, meta.mtime_ms)) is not None
        ]

    async def _newest_expired(
        self, state: TableState, listing: LogListing, cutoff: int
    ) -> int | None:
        """Return the cutoff commit; with in-commit timestamps both times must have expired."""
        times = monotonic_file_times(listing.commits)
        newest = cutoff_commit(times, cutoff)
        if newest is None or not state.has_in_commit_timestamps:
            return newest
        expired = sorted(version for version in times if version <= newest)
        first, until = 0, len(expired)
        while first < until:
            middle = (first + until) // 2
            found = await self._reader.read_commit(listing.commits[expired[middle]])
            time = found.commit.timestamp_in_commit_ms
            # A commit before they were enabled has only its file's time, which has expired.
            if time is None or time <= cutoff:
                first = middle + 1
            else:
                until = middle
        return expired[first - 1] if first else None

    async def _check_whole(self, listing: LogListing, version: int) -> None:
        """Rebuild a version from its checkpoint alone, and read the whole checkpoint once."""
        segment = LogSegment(
            version=version,
            checkpoint=listing.checkpoints[version][0],
            ascending_commits=(),
        )
        try:
            snapshot = await replay_segment(self._reader, segment, with_files=True)
            for file, _ in snapshot.checkpoint_files:
                if not file.is_json:
                    await asyncio.to_thread(self._read_all, file)
        except (DamagedCheckpointError, CorruptLogError) as error:
            raise CorruptLogError(
                f"Cleanup was skipped, because the checkpoint of version {version}, which"
                f" replaces the deleted files, is damaged: {error}",
                remedy="Let a writer of the table write a newer checkpoint, and keep the commits"
                " before it until then.",
            ) from error

    def _read_all(self, file: LogFile) -> None:
        with self._open_checkpoint(file) as rows:
            for _ in rows.rows(("add", "remove"), ROWS_AT_ONCE):
                pass

    async def apply(
        self, plan: CleanupPlan, objection: Callable[[], Awaitable[str]] = _nothing_against
    ) -> CleanupResult:
        """Delete planned files that are unchanged, then sidecars and leftovers.

        It stops if the checkpoint to keep is no longer the planned one: the table may have been
        replaced.

        Args:
            objection: Called before each batch: returns why to stop, empty to continue.

        Raises:
            StorageError: A file cannot be deleted; the files to keep are complete nevertheless.
        """
        files = await self._still_there(plan)
        if files is None:
            return _result([], reason=LOG_CHANGED)
        deleted: list[LogFile] = []
        try:
            # A batch is one request; a check before each file would add one request per file.
            for first in range(0, len(files), BATCH_FILES):
                if plan.stays is not None:
                    await check_unchanged(self._reader, plan.stays)
                if reason := await objection():
                    return _result(deleted, reason=reason)
                batch = files[first : first + BATCH_FILES]
                await self._delete(batch)
                deleted += batch
        except LogChangedError:
            return _result(deleted, reason=LOG_CHANGED)
        sidecars = await self.unnamed_sidecars()
        if sidecars and (reason := await objection()):
            return _result(deleted, reason=reason)
        await self._delete(sidecars)
        leftovers = await self.sweep()
        return _result(
            [*files, *sidecars],
            leftovers=leftovers,
            oldest_version=plan.oldest_version,
            reason=plan.reason if files or not plan.files else LOG_CHANGED,
        )

    async def sweep(self) -> int:
        """Delete unfinished files not written to for a day; return how many.

        Raises:
            StorageError: One cannot be deleted.
        """
        before = midnight_before(self._clock.now_ms() - DAY_MS)
        folders = (self._reader.path, f"{self._reader.path}/{SIDECAR_FOLDER}")
        return sum([await sweep(self._reader.store, folder, before) for folder in folders])

    async def _still_there(self, plan: CleanupPlan) -> list[LogFile] | None:
        """Return the planned files that are unchanged: the table may have been replaced.

        None if the checkpoint that replaces them is missing.
        """
        if not plan.files:
            return []
        found = await self._list()
        if plan.oldest_version not in LogListing.classify(found).checkpoints:
            return None
        unchanged = frozenset(found)
        return [file for file in plan.files if file in unchanged]

    async def _delete(self, files: Sequence[LogFile]) -> None:
        # If a batch is deleted only in part, every version before the kept checkpoint is either
        # rebuilt correctly or not at all: a log with a gap cannot be replayed.
        await delete_all(self._reader.store, [self._reader.resolve_path(file) for file in files])

    async def unnamed_sidecars(self) -> tuple[LogFile, ...]:
        """Return unreferenced sidecars; none if a checkpoint cannot be read: it may use any."""
        # The clock is read first, and sidecars are listed before checkpoints: a sidecar referenced
        # in between, while this machine sleeps, is new and therefore kept.
        now_ms = self._clock.now_ms()
        folder = f"{self._reader.path}/{SIDECAR_FOLDER}"
        await self._reader.check_not_linked()
        links = await self._reader.linked_names(folder)
        found = [
            LogFile(
                name=f"{SIDECAR_FOLDER}/{meta.name}",
                kind=LogFileKind.SIDECAR,
                version=0,
                end_version=0,
                size_bytes=meta.size_bytes,
                mtime_ms=meta.mtime_ms,
            )
            async for meta in self._reader.store.list_from(folder)
            if is_sidecar_name(meta.name) and meta.name not in links
        ]
        if not found:
            return ()
        named: set[str] = set()
        listing = await self._reader.list_log()
        for candidates in listing.checkpoints.values():
            for parts in candidates:
                try:
                    for file in parts:
                        sidecars = await named_sidecars(self._reader, file)
                        named.update(sidecar.name for sidecar in sidecars)
                except (CorruptLogError, FileMissingError):
                    return ()
        return expired_sidecars(found, frozenset(named), now_ms)

    def _open_checkpoint(self, file: LogFile) -> CheckpointFile:
        return CheckpointFile.open(self._reader, file)
