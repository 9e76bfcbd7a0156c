"""How large a table is and what a reader of its changes has before it, moved on by each commit.

The table is opened once, with its files; from then on a commit costs what the commit is long. Rows
follow statistics: one file without them, or a commit that does not add up, and they are unknown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tailerd.errors import MissingVersionError
from tailerd.formats.delta.log.live_files import count_rows
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.log.snapshot_cache import SnapshotCache
from tailerd.formats.delta.protocol.actions import Metadata
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.table_properties import retention_seconds
from tailerd.formats.delta.stats.log_tally import LogTally

COMMITS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """A table at one version.

    Attributes:
        version: The version all else is of.
        rows: Live rows without deleted ones; None where statistics do not tell.
        size_counts: Files by the bins of `SizeHistogram`.
        commits_since_checkpoint, bytes_since_checkpoint: What a reader replays on top of the
            newest checkpoint, or from the beginning.
        log_files: Files of the log.
        retention_seconds: How long after its time a commit and its files are kept at least.
    """

    version: int
    files: int
    bytes: int
    rows: int | None
    deletion_vectors: int
    deleted_rows: int
    size_counts: tuple[int, ...]
    checkpoint_version: int | None
    commits_since_checkpoint: int
    bytes_since_checkpoint: int
    log_files: int
    retention_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWork:
    """Files that commits not yet delivered have changed, and their bytes."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """What one commit did.

    Attributes:
        timestamp_ms: Its in-commit timestamp where it has one, else its file's time.
        rows_added, rows_removed: Physical rows of these files; None where statistics do not tell.
        metadata: The table's metadata, where the commit changes it.
    """

    version: int
    timestamp_ms: int
    operation: str
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int
    rows_added: int | None
    rows_removed: int | None
    metadata: Metadata | None


class TableGrowth:
    """Follows one table. Opened and advanced by one task.

    Args:
        reader: The table's log, made `with_rows`.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._cache = SnapshotCache(reader, in_thread=True)
        self._log = LogTally(reader)
        self._stored_rows: int | None = None
        self._first_version = 0
        self._commits: deque[tuple[int, int, int]] = deque()
        self._news: list[CommitFacts] = []
        self._table_ids: set[str] = set()

    @property
    def table_id(self) -> str:
        """Identity of the table at that version."""
        return self._cache.snapshot.state.metadata.id

    def is_of(self, table_id: str) -> bool:
        """Tell whether the table has this identity, or had it when it was opened or since."""
        return table_id == self.table_id or table_id in self._table_ids

    @property
    def metadata(self) -> Metadata:
        """The table's metadata at that version."""
        return self._cache.snapshot.state.metadata

    def take_news(self) -> list[CommitFacts]:
        """Return the commits that came since this was asked last."""
        news, self._news = self._news, []
        return news

    @property
    def version(self) -> int:
        """The version it has come to."""
        return self._cache.snapshot.version

    async def open(self, next_version: int, now: float) -> None:
        """Load the table right before `next_version`, or at its head if that is no longer there.

        Args:
            next_version: The next version to be delivered; commits from there on are pending.
            now: Monotonic seconds.

        Raises:
            TableError: The table cannot be read.
            StorageError: The log cannot be.
        """
        try:
            snapshot = await self._cache.open(max(0, next_version - 1))
        except MissingVersionError:
            snapshot = await self._cache.open()
        self._table_ids = {snapshot.state.metadata.id}
        self._first_version = snapshot.version + 1
        rows = await count_rows(self._reader, snapshot)
        self._stored_rows = None if rows is None else rows + snapshot.files.vectors.deleted_rows
        await self._log.look(now)

    async def advance(self, now: float) -> bool:
        """Apply commits that have come, a bounded number; tell whether more may be there.

        Raises:
            TableError, StorageError: A commit cannot be read.
        """
        for _ in range(COMMITS_AT_ONCE):
            files = self._cache.snapshot.files.num_files
            found = await self._cache.advance()
            if found is None:
                await self._log.look(now)
                return False
            self._take(found, files)
        return True

    def expire(self) -> None:
        """Let the next `advance` look at the log itself, not only at new commits."""
        self._log.expire()

    def due_in(self, now: float) -> float | None:
        """Return the seconds until `advance` should be called although no commit came."""
        return self._log.due_in(now)

    def pending(self, next_version: int) -> PendingWork | None:
        """Return what is to deliver from `next_version` on; None where it was not followed.

        What lies before is forgotten.
        """
        while self._commits and self._commits[0][0] < next_version:
            self._first_version = self._commits.popleft()[0] + 1
        if next_version < self._first_version:
            return None
        return PendingWork(
            files=sum(files for _, files, _ in self._commits),
            bytes=sum(size for _, _, size in self._commits),
        )

    def size(self) -> TableSize:
        """Return the table as it is now."""
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
        self._news.append(_facts_of(found))
        self._commits.append((commit.version, *_work_of(commit)))
        # A file that is added again, or removed twice, makes the sums of rows wrong.
        is_plain = (
            self._cache.snapshot.files.num_files
            == files_before + commit.added.files - commit.removed.files
        )
        rows, added, removed = self._stored_rows, commit.rows_added, commit.rows_removed
        if rows is None or added is None or removed is None or not is_plain:
            self._stored_rows = None
        else:
            self._stored_rows = rows + added - removed


def _work_of(commit: Commit) -> tuple[int, int]:
    """Return files and bytes behind the row changes of a commit."""
    if commit.change_files.files:
        return commit.change_files.files, commit.change_files.size_bytes
    added, removed = commit.data_added, commit.data_removed
    return added.files + removed.files, added.size_bytes + removed.size_bytes


def _facts_of(found: CommitBody) -> CommitFacts:
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
        metadata=commit.metadata,
    )
