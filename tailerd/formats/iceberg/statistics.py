"""Measures an Iceberg table, and what of it is still to be delivered, by its manifests alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from tailerd.changefeed.offset import Offset, Phase, first_commit
from tailerd.errors import MissingVersionError, NotATableError
from tailerd.formats.base import OpenRequest
from tailerd.formats.iceberg.columns import parse_columns
from tailerd.formats.iceberg.commit_plan import CommitFiles
from tailerd.formats.iceberg.manifests import Content, ContentFile
from tailerd.formats.iceberg.metadata import Commit
from tailerd.formats.iceberg.planner import IcebergPlanner
from tailerd.formats.iceberg.table_files import TableFiles, open_files
from tailerd.formats.part_request import PartRequest
from tailerd.formats.statistics import (
    Columns,
    CommitFacts,
    CommitStatistics,
    PendingWork,
    TableSize,
    size_counts,
)

_COMMITS_AT_ONCE = 50
_MAX_PENDING = 10_000


class IcebergStatistics(CommitStatistics):
    """Follows one table; see `formats.statistics.TableStatistics`."""

    def __init__(self, request: PartRequest) -> None:
        super().__init__()
        self._location = request.location
        self._options = request.options
        self._opened: TableFiles | None = None
        self._at: Commit | None = None
        self._live: dict[tuple[str, int | None, int], ContentFile] = {}
        self._commits: OrderedDict[int, PendingWork] = OrderedDict()
        self._first = 0

    @property
    def _files(self) -> TableFiles:
        assert self._opened is not None
        return self._opened

    @property
    def _newest(self) -> Commit:
        assert self._at is not None
        return self._at

    @property
    def _planner(self) -> IcebergPlanner:
        return IcebergPlanner(self._files, self._location.name, OpenRequest())

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self._files.state.table_id

    @property
    def version(self) -> int:
        """The version up to which commits are applied."""
        return self._newest.version

    def has_identity(self, table_id: str) -> bool:
        """Return whether the table has this identity."""
        return table_id == self.table_id

    def columns(self) -> Columns:
        """Return name and type of each column.

        Raises:
            TableError: The schema cannot be read.
        """
        return self._list_columns(self._newest)

    def _list_columns(self, commit: Commit) -> Columns:
        columns = parse_columns(self._planner.whole_schema(commit.snapshot))
        return tuple((each.name, each.type_name) for each in columns)

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the table where delivery began, if that is near, else at the current position.

        Raises:
            NotATableError: There is no table, or it has no snapshot yet.
            TableError, StorageError: It cannot be read.
        """
        self._opened, _ = await open_files(self._location, self._options)
        commits = self._files.state.commits
        if not commits:
            raise NotATableError(f"The table at {self._location.url} has no snapshot yet.")
        begin = first if first is not None else next_up
        requested = commits[-1].version + 1 if begin is None else first_commit(begin)
        before = [each for each in commits if each.version < requested]
        is_near = len(commits) - len(before) <= _MAX_PENDING
        self._at = before[-1] if before and is_near else commits[-1]
        self._first = self.version + 1
        if not before and is_near:
            # Everything is pending: the first commit is counted too.
            self._at, self._first = commits[0], 0
            self._note(commits[0], await self._planner.commit_files(commits[0]))
        snapshot = self._newest.snapshot
        self._live = {}
        for are_deletes in (False, True):
            live = await self._files.live_files(snapshot, are_deletes=are_deletes)
            self._live |= {each.key: each for each in live}

    def _note(self, commit: Commit, files: CommitFiles) -> None:
        data = [*files.data(files.added), *files.data(files.removed)]
        size = sum(each.size_bytes for each in data)
        self._commits[commit.version] = PendingWork(files=len(data), bytes=size)
        while len(self._commits) > _MAX_PENDING:
            self._first = self._commits.popitem(last=False)[0] + 1

    def reaches(self, next_up: Offset) -> bool:
        """Return whether the pending work from an offset on is tracked."""
        return first_commit(next_up) >= self._first

    async def advance(self, now: float) -> bool:
        """Apply new commits; return whether there may be more.

        Raises:
            MissingVersionError: The history was rewritten.
            TableError, StorageError: A commit cannot be read.
        """
        state = await self._files.refresh()
        if state.find(self._newest.snapshot.snapshot_id) is None:
            raise MissingVersionError(
                f"Version {self.version} of {self._location.url} is no longer in the table's"
                " history: it was rolled back, or expired."
            )
        new = [each for each in state.commits if each.version > self.version]
        for commit in new[:_COMMITS_AT_ONCE]:
            files = await self._planner.commit_files(commit)
            columns = self._list_columns(commit)
            self._note(commit, files)
            changed = columns if columns != self.columns() else None
            self._new_commits.append(_facts(commit, files, changed))
            for each in files.removed:
                self._live.pop(each.key, None)
            self._live |= {each.key: each for each in files.added}
            self._at = commit
        return len(new) > _COMMITS_AT_ONCE

    def pending(self, next_up: Offset | None) -> PendingWork | None:
        """Return the changes left to deliver from an offset on; None if that was not tracked."""
        if next_up is None:
            self._commits.clear()
            return PendingWork(files=0, bytes=0)
        start = first_commit(next_up)
        if start < self._first:
            return None
        for version in [each for each in self._commits if each < start]:
            del self._commits[version]
        self._first = max(self._first, min(start, self.version + 1))
        left = list(self._data) if next_up.phase is Phase.SNAPSHOT else []
        left = left[next_up.position :]
        commits = self._commits.values()
        return PendingWork(
            files=sum(each.files for each in commits) + len(left),
            bytes=sum(each.bytes for each in commits) + sum(each.size_bytes for each in left),
        )

    @property
    def _data(self) -> Sequence[ContentFile]:
        return [each for each in self._live.values() if each.content is Content.DATA]

    def size(self) -> TableSize:
        """Return the figures at `version`; a metadata file describes the whole table."""
        data = self._data
        vectors = [each for each in self._live.values() if each.offset is not None]
        has_others = len(data) + len(vectors) < len(self._live)
        deleted = Counter[str]()
        for each in vectors:
            deleted[each.data_file or ""] += each.rows
        rows = sum(each.rows for each in data) - deleted.total()
        sizes = [each.size_bytes for each in data]
        return TableSize(
            version=self.version,
            files=len(data),
            bytes=sum(sizes),
            rows=None if has_others else rows,
            deletion_vectors=len(vectors),
            deleted_rows=deleted.total(),
            size_counts=size_counts(sizes),
            checkpoint_version=self.version,
            log_files=len(self._files.state.commits),
        )


def _facts(commit: Commit, files: CommitFiles, columns: Columns | None) -> CommitFacts:
    added, removed = files.data(files.added), files.data(files.removed)
    return CommitFacts(
        version=commit.version,
        timestamp_ms=commit.snapshot.timestamp_ms,
        operation=commit.snapshot.operation,
        files_added=len(added),
        bytes_added=sum(each.size_bytes for each in added),
        files_removed=len(removed),
        bytes_removed=sum(each.size_bytes for each in removed),
        rows_added=sum(each.rows for each in added),
        rows_removed=sum(each.rows for each in removed),
        columns=columns,
    )
