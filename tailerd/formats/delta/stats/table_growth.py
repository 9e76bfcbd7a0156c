"""Tracks the size of a table and the pending work of a reader, updated by each commit.

The table is opened once, with its files; after that the cost is proportional to each commit's size.
Rows come from statistics: after a file without them, or an inconsistent commit, they are unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tailerd.changefeed.offset import Offset, Phase, first_commit
from tailerd.errors import BugError, MissingVersionError
from tailerd.formats.delta.log.live_files import count_rows
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.schema import column_texts, parse_schema
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.formats.delta.protocol.table_properties import retention_seconds
from tailerd.formats.part_request import PartRequest
from tailerd.formats.statistics import (
    Columns,
    CommitFacts,
    CommitStatistics,
    PendingWork,
    TableSize,
)

COMMITS_AT_ONCE = 256
_FILE_KEYS = 1 << 64
"""File keys, in whose order a snapshot is delivered, are unsigned and have 64 bits."""


def open_growth(request: PartRequest) -> TableGrowth:
    """Return the statistics of one table; makes no request yet."""
    location = request.location
    return TableGrowth(
        LogReader(location.store, location.root, on_mismatch=request.warn, with_rows=True)
    )


class TableGrowth(CommitStatistics):
    """Follows one table. Opened and advanced by one task.

    Args:
        reader: The table's log, created `with_rows`.

    Attributes:
        measured_again_after: Maintenance jobs that change figures without a commit.
    """

    measured_again_after = frozenset({"checkpoint", "cleanup"})

    def __init__(self, reader: LogReader) -> None:
        super().__init__()
        self._reader = reader
        self._cache = SnapshotCache(reader, in_thread=True)
        self._log = LogTally(reader)
        self._stored_rows: int | None = None
        self._first_version = 0
        self._commits: deque[tuple[int, int, int]] = deque()
        self._table_ids: set[str] = set()

    @property
    def table_id(self) -> str:
        """Identity of the table at that version."""
        return self._cache.snapshot.state.metadata.id

    def has_identity(self, table_id: str) -> bool:
        """Return whether the table has this identity, or had it when it was opened or since."""
        return table_id == self.table_id or table_id in self._table_ids

    def columns(self) -> Columns:
        """Return name and type of each column at that version, human-readable.

        Raises:
            CorruptLogError: The schema is invalid.
            UnsupportedFeatureError: It is nested too deeply.
        """
        return _list_columns(self._cache.snapshot.state.metadata.schema_text)

    @property
    def version(self) -> int:
        """The version up to which commits are applied."""
        return self._cache.snapshot.version

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the table right before the next delivery, or at its head.

        An engine may already have delivered commits before this call, which must be counted too: so
        it starts where delivery began, if that is near.

        Args:
            now: Monotonic seconds.
            first: Where delivery began; None if nothing is delivered.
            next_up: The first item not yet delivered; commits from there on are pending.

        Raises:
            TableError: The table cannot be read.
            StorageError: The log cannot be read.
        """
        snapshot = await self._snapshot_before(_next_commit(first), _next_commit(next_up))
        self._table_ids = {snapshot.state.metadata.id}
        self._first_version = snapshot.version + 1
        rows = await count_rows(self._reader, snapshot)
        self._stored_rows = None if rows is None else rows + snapshot.files.vectors.deleted_rows
        await self._log.refresh(now)

    async def _snapshot_before(self, first: int | None, next_version: int | None) -> Snapshot:
        if next_version is None:
            return await self._cache.open()
        is_near = first is not None and next_version - first <= COMMITS_AT_ONCE
        begin = first if is_near and first is not None else next_version
        try:
            return await self._cache.open(max(0, begin - 1))
        except MissingVersionError:
            return await self._cache.open()

    def reaches(self, next_up: Offset) -> bool:
        """Return whether advancing to an offset is cheaper than opening the table again there."""
        next_version = _next_commit(next_up)
        return next_version is None or next_version <= self.version + 1 + COMMITS_AT_ONCE

    async def advance(self, now: float) -> bool:
        """Apply a bounded number of new commits; return whether there may be more.

        Raises:
            TableError, StorageError: A commit cannot be read.
        """
        for _ in range(COMMITS_AT_ONCE):
            files = self._cache.snapshot.files.num_files
            found = await self._cache.advance()
            if found is None:
                await self._log.refresh(now)
                return False
            self._take(found, files)
        return True

    def expire(self) -> None:
        """Make the next `advance` list the log, not only read new commits."""
        self._log.expire()

    def due_in(self, now: float) -> float | None:
        """Return the seconds until `advance` is due even without a new commit."""
        return self._log.due_in(now)

    def pending(self, next_up: Offset | None) -> PendingWork | None:
        """Return the changes left to deliver from an offset on; None if that was not tracked.

        What is before the offset is dropped; without an offset everything is.
        """
        next_version = _next_commit(next_up)
        if next_version is None:
            next_version = self.version + 1
        while self._commits and self._commits[0][0] < next_version:
            self._first_version = self._commits.popleft()[0] + 1
        if next_version < self._first_version:
            return None
        share = _snapshot_share(next_up)
        whole = self._cache.snapshot.files
        return PendingWork(
            files=sum(files for _, files, _ in self._commits) + round(whole.num_files * share),
            bytes=sum(size for _, _, size in self._commits) + round(whole.size_bytes * share),
        )

    def size(self) -> TableSize:
        """Return the current figures of the table."""
        snapshot, log = self._cache.snapshot, self._log
        files = snapshot.files
        deleted = files.vectors.deleted_rows
        return TableSize(
            version=snapshot.version,
            files=files.num_files,
            bytes=files.size_bytes,
            rows=None if self._stored_rows is None else self._stored_rows - deleted,
            deletion_vectors=files.vectors.count,
            deleted_rows=deleted,
            size_counts=tuple(files.sizes.counts),
            checkpoint_version=log.checkpoint_version,
            commits_since_checkpoint=log.commits,
            bytes_since_checkpoint=log.bytes,
            log_files=log.files,
            retention_seconds=retention_seconds(snapshot.state.metadata.configuration),
        )

    def _take(self, found: CommitBody, files_before: int) -> None:
        commit = found.commit
        self._log.advance(found.file)
        self._table_ids.add(self.table_id)
        self._new_commits.append(_make_facts(found))
        self._commits.append((commit.version, *_measure_work(commit)))
        # A file that is added again or removed twice would make the row counts wrong.
        is_plain = (
            self._cache.snapshot.files.num_files
            == files_before + commit.added.files - commit.removed.files
        )
        rows, added, removed = self._stored_rows, commit.rows_added, commit.rows_removed
        if rows is None or added is None or removed is None or not is_plain:
            self._stored_rows = None
        else:
            self._stored_rows = rows + added - removed


def _measure_work(commit: Commit) -> tuple[int, int]:
    """Return the number and bytes of the files with the row changes of a commit."""
    if commit.change_files.files:
        return commit.change_files.files, commit.change_files.size_bytes
    added, removed = commit.data_added, commit.data_removed
    return added.files + removed.files, added.size_bytes + removed.size_bytes


def _make_facts(found: CommitBody) -> CommitFacts:
    commit, info = found.commit, found.commit.info
    in_commit_ms = None if info is None else info.in_commit_timestamp
    return CommitFacts(
        version=commit.version,
        timestamp_ms=found.file.mtime_ms if in_commit_ms is None else in_commit_ms,
        operation="" if info is None else info.operation,
        files_added=commit.added.files,
        bytes_added=commit.added.size_bytes,
        files_removed=commit.removed.files,
        bytes_removed=commit.removed.size_bytes,
        rows_added=commit.rows_added,
        rows_removed=commit.rows_removed,
        columns=None if commit.metadata is None else _list_columns(commit.metadata.schema_text),
    )


def _list_columns(schema_text: str) -> Columns:
    return column_texts(parse_schema(schema_text))


def _next_commit(offset: Offset | None) -> int | None:
    return None if offset is None else first_commit(offset)


def _snapshot_share(offset: Offset | None) -> float:
    """Return the share of a snapshot that is still to be delivered, 0 to 1."""
    if offset is None or offset.phase is not Phase.SNAPSHOT:
        return 0.0
    return 1 - offset.position / _FILE_KEYS


class SnapshotCache:
    """Holds one table's snapshot and advances it.

    Case A: the next commit exists: the snapshot advances by it.
    Case B: it does not exist: nothing happens; one request was made.

    Args:
        reader: The table's log.
        with_files: Whether live files are indexed.
        in_thread: Whether commits are applied in a worker thread: an index that is folded, or a
            commit of very many files, takes longer than an event loop should wait.
    """

    def __init__(
        self, reader: LogReader, *, with_files: bool = True, in_thread: bool = False
    ) -> None:
        self.reader = reader
        self._in_thread = in_thread
        self._with_files = with_files
        self._snapshot: Snapshot | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot seen.

        Raises:
            BugError: `open` was not called.
        """
        if self._snapshot is None:
            raise BugError("The snapshot cache was asked before it was opened.")
        return self._snapshot

    async def open(self, version: int | None = None) -> Snapshot:
        """Load a version (None: the newest) from the log.

        Raises:
            TableError: As `LogReader.open`.
        """
        self._snapshot = await self.reader.open(version, with_files=self._with_files)
        return self._snapshot

    async def advance(self) -> CommitBody | None:
        """Apply the next commit, if it exists; return it.

        Raises:
            TableError: The commit is damaged, or changes to a protocol that is not supported.
        """
        found = await self.reader.find_commit(self.snapshot.version + 1)
        if found is None:  # Case B
            return None
        # Case A. Checked first: advancing takes the files away from the snapshot that stays.
        self.snapshot.state.after(found.commit).check_rows()
        if self._in_thread:
            self._snapshot = await asyncio.to_thread(self.snapshot.advance, found.commit)
        else:
            self._snapshot = self.snapshot.advance(found.commit)
        return found


RECENT_SECONDS = 60.0
"""How often the newest part of the log is listed, while there are new commits."""
WHOLE_SECONDS = 3600.0
"""How often the whole log is listed: cleanup removes its oldest files."""


class LogTally:
    """Counts files of one log: listed periodically, updated by every commit in between.

    Attributes:
        checkpoint_version: The newest complete checkpoint; None without one.
        commits, bytes: Commits after it, and their bytes, which a reader replays.
        files: Files of the log.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.checkpoint_version: int | None = None
        self.commits = 0
        self.bytes = 0
        self.files = 0
        self._older_files = 0
        self._listed_from = 0
        self._whole_at = float("-inf")
        self._listed_at = float("-inf")
        self._newest = -1
        self.is_settled = True

    async def refresh(self, now: float) -> bool:
        """List the log if a listing is due; return whether it was.

        Args:
            now: Monotonic seconds.

        Raises:
            StorageError: The log cannot be listed.
        """
        if now - self._whole_at >= WHOLE_SECONDS:
            self._learn(await self._reader.list_log(), 0)
            self._whole_at = now
        elif now - self._listed_at >= RECENT_SECONDS:
            self._learn(await self._reader.list_log(self._listed_from), self._older_files)
        else:
            return False
        self._listed_at = now
        self.is_settled = True
        return True

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next listing is due; None while there are no commits."""
        return None if self.is_settled else max(0.0, self._listed_at + RECENT_SECONDS - now)

    def expire(self) -> None:
        """Make the next `look` list the newest part of the log: a checkpoint was written."""
        self._listed_at = float("-inf")
        self.is_settled = False

    def advance(self, file: LogFile) -> None:
        """Count a new commit."""
        if file.version <= self._newest:
            # The listing included it already.
            return
        self._newest = file.version
        self.commits += 1
        self.bytes += file.size_bytes
        self.files += 1
        self.is_settled = False

    def _learn(self, listing: LogListing, older_files: int) -> None:
        if listing.checkpoints:
            self.checkpoint_version = max(listing.checkpoints)
        after = -1 if self.checkpoint_version is None else self.checkpoint_version
        since = [file for version, file in listing.commits.items() if version > after]
        self.commits = len(since)
        self.bytes = sum(file.size_bytes for file in since)
        self.files = older_files + _count(listing, 0)
        self._newest = max(listing.commits, default=-1)
        if not older_files:
            self._listed_from = max(0, after)
            self._older_files = self.files - _count(listing, self._listed_from)


def _count(listing: LogListing, start: int) -> int:
    """Return the number of files in a listing for versions from `start` on."""
    checkpoints = listing.checkpoints.items()
    return (
        sum(version >= start for version in listing.commits)
        + sum(len(parts) for version, found in checkpoints if version >= start for parts in found)
        + sum(file.version >= start for file in listing.compactions)
        + sum(version >= start for version in listing.checksum_versions)
    )
