"""Measures a Lance table, and what of it is still to be delivered, by its manifests alone."""

from __future__ import annotations

from collections import OrderedDict

from tailerd.changefeed.offset import Offset, Phase, first_commit
from tailerd.formats.inspection import CommitDescription
from tailerd.formats.lance.inspect import describe_commit, sum_fragments
from tailerd.formats.lance.origin import TableOrigin
from tailerd.formats.lance.protocol.fragments import Fragment
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.version_log import VersionLog
from tailerd.formats.part_request import PartRequest
from tailerd.formats.statistics import (
    Columns,
    CommitFacts,
    CommitStatistics,
    PendingWork,
    TableSize,
    size_counts,
)
from tailerd.state.ledger import open_ledger

_COMMITS_AT_ONCE = 50
_MAX_PENDING = 10_000


class LanceStatistics(CommitStatistics):
    """Follows one table; see `formats.statistics.TableStatistics`."""

    def __init__(self, request: PartRequest) -> None:
        super().__init__()
        self._request, self._location = request, request.location
        location = request.location
        self._log = VersionLog(location.store, location.root, location.url)
        self._table_id = ""
        self._manifest: Manifest | None = None
        self._fragments: dict[bytes, Fragment] = {}
        self._commits: OrderedDict[int, CommitDescription] = OrderedDict()
        self._first = 0

    @property
    def _newest(self) -> Manifest:
        assert self._manifest is not None
        return self._manifest

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self._table_id

    @property
    def version(self) -> int:
        """The version up to which commits are applied."""
        return self._newest.version

    def has_identity(self, table_id: str) -> bool:
        """Return whether the table has this identity."""
        return table_id == self._table_id

    def columns(self) -> Columns:
        """Return name and type of each column."""
        return _columns(self._log, self._newest)

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the table where delivery began, if that is near, else at the current position.

        Raises:
            NotATableError: There is no table.
            TableError, StorageError, OffsetError: It cannot be read.
        """
        await self._log.refresh()
        ledger = open_ledger(self._request.ledger, self._location.stores)
        self._table_id = (await TableOrigin.open(self._log, ledger)).table_id
        head = self._log.head
        begin = first if first is not None else next_up
        requested = head + 1 if begin is None else first_commit(begin)
        start = max(requested - 1, 1)
        is_near = head - start <= _MAX_PENDING
        manifest = await self._log.find(start) if is_near and start <= head else None
        if manifest is None:
            manifest = await self._log.manifest(head, lambda: "which was the newest")
        self._first = manifest.version + 1
        if requested <= 1 and manifest.version == 1:
            self._first = 1
            await self._note(manifest)
        self._take(manifest)

    def _take(self, manifest: Manifest) -> None:
        known = self._fragments
        self._fragments = {raw: known.get(raw) or manifest.parse(raw) for raw in manifest.fragments}
        self._manifest = manifest

    async def _note(self, manifest: Manifest) -> None:
        self._commits[manifest.version] = await describe_commit(self._log, manifest)
        while len(self._commits) > _MAX_PENDING:
            self._first = self._commits.popitem(last=False)[0] + 1

    def reaches(self, next_up: Offset) -> bool:
        """Return whether the pending work from an offset on is tracked."""
        return first_commit(next_up) >= self._first

    async def advance(self, now: float) -> bool:
        """Apply new commits; return whether there may be more.

        Raises:
            TableError, StorageError: A commit cannot be read.
        """
        await self._log.refresh()
        until = min(self._log.head, self.version + _COMMITS_AT_ONCE)
        for version in range(self.version + 1, until + 1):
            manifest = await self._log.find(version)
            if manifest is None:
                # Cleaned up meanwhile: the commits after it are still known.
                self._first = version + 1
                continue
            await self._note(manifest)
            columns = _columns(self._log, manifest)
            changed = columns if columns != self.columns() else None
            self._new_commits.append(_facts(self._commits[version], changed))
            self._take(manifest)
        return until < self._log.head

    def expire(self) -> None:
        """Make the next `advance` list the folder."""
        self._log.note_version(self.version + 1)

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
        left = list(self._fragments.values()) if next_up.phase is Phase.SNAPSHOT else []
        left = left[next_up.position :]
        commits = self._commits.values()
        return PendingWork(
            files=sum(each.files_added + each.files_removed for each in commits)
            + sum(len(each.files) for each in left),
            bytes=sum((each.bytes_added or 0) + (each.bytes_removed or 0) for each in commits)
            + sum(each.size_bytes for each in left),
        )

    def size(self) -> TableSize:
        """Return the figures at `version`; each manifest describes the whole table."""
        fragments = self._fragments.values()
        totals = sum_fragments(fragments)
        sizes = [file.size_bytes for each in fragments for file in each.files]
        return TableSize(
            version=self.version,
            files=totals.files,
            bytes=sum(sizes),
            rows=totals.rows,
            deletion_vectors=sum(each.deletions is not None for each in fragments),
            deleted_rows=totals.deleted_rows,
            size_counts=size_counts(sizes),
            checkpoint_version=self.version,
            log_files=len(self._log.versions),
        )


def _facts(commit: CommitDescription, columns: Columns | None) -> CommitFacts:
    return CommitFacts(
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        operation=commit.operation or "",
        files_added=commit.files_added,
        bytes_added=commit.bytes_added or 0,
        files_removed=commit.files_removed,
        bytes_removed=commit.bytes_removed or 0,
        columns=columns,
    )


def _columns(log: VersionLog, manifest: Manifest) -> Columns:
    return tuple((each.name, str(each.type or each.reason)) for each in log.columns(manifest))
