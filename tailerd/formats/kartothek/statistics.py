"""Measures a dataset's table, and what of it is still to be delivered, at the newest kept state.

States that a pipeline has not saved in its ledger yet are not counted: they have no number. Without
a ledger, the current state of the dataset is used.
"""

from __future__ import annotations

from dataclasses import replace

from tailerd.changefeed.offset import Offset, Phase, first_commit
from tailerd.errors import NotATableError
from tailerd.formats.kartothek.dataset import DatasetAddress, FileSizes, find_dataset
from tailerd.formats.kartothek.file_rows import count_rows
from tailerd.formats.kartothek.history import DatasetHistory
from tailerd.formats.kartothek.state import ObservedCommit, ObservedState
from tailerd.formats.part_request import PartRequest
from tailerd.formats.plain_schema import decode_schema
from tailerd.formats.statistics import (
    Columns,
    CommitFacts,
    CommitStatistics,
    PendingWork,
    TableSize,
    size_counts,
)
from tailerd.state.ledger import Ledger, open_ledger


class KartothekStatistics(CommitStatistics):
    """Follows one table of a dataset; see `formats.statistics.TableStatistics`."""

    def __init__(self, request: PartRequest) -> None:
        super().__init__()
        self._location = request.location
        requested = None if request.ledger is None else replace(request.ledger, is_read_only=True)
        self._ledger: Ledger = open_ledger(requested, request.location.stores)
        self._address: DatasetAddress | None = None
        self._state: ObservedState | None = None
        self._sizes: dict[str, int] = {}
        self._rows: dict[str, int] | None = {}
        self._first_version = 0

    @property
    def _newest(self) -> ObservedState:
        assert self._state is not None
        return self._state

    @property
    def table_id(self) -> str:
        """Identity of the dataset, and of the ledger that numbers its states."""
        return self._newest.table_id

    @property
    def version(self) -> int:
        """The newest state."""
        return self._newest.number

    def has_identity(self, table_id: str) -> bool:
        """Return whether the id is of the same ledger, in which an overwrite is just a state."""
        return table_id.rpartition("#")[2] == self._newest.origin

    def columns(self) -> Columns:
        """Return name and type of each column."""
        return _list_columns(self._newest.schema)

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the newest state; commits from the next delivery on are pending.

        Raises:
            NotATableError: There is no dataset.
            TableError, StorageError, OffsetError: It cannot be read.
        """
        location = self._location
        self._address = await find_dataset(location.store, location.root)
        if self._address is None:
            raise NotATableError(f"There is no dataset at {location.url}.")
        await self._take(await self._refresh())
        begin = first if first is not None else next_up
        self._first_version = self.version + 1 if begin is None else first_commit(begin)

    async def _refresh(self) -> ObservedState:
        """Return the newest kept state, or the current one if none is kept."""
        assert self._address is not None
        for number in reversed(await self._ledger.numbers()):
            entry = await self._ledger.load(number)
            # It may be deleted meanwhile, after later ones were saved.
            if entry is not None:
                return ObservedState.from_bytes(entry)
        location = self._location
        history = await DatasetHistory.open(
            location.store, self._address, self._ledger, location.url
        )
        return history.newest

    async def _take(self, state: ObservedState) -> None:
        assert self._address is not None
        store = self._location.store
        new = [key for key in state.keys if key not in self._sizes]
        sizes = self._sizes | await FileSizes(store, self._address).fetch_sizes(new)
        self._sizes = {key: sizes[key] for key in state.keys if key in sizes}
        if self._rows is not None:
            there = [key for key in new if key in self._sizes]
            counted = await count_rows(store, self._address, there)
            rows = self._rows | dict(zip(there, counted or (), strict=False))
            is_known = counted is not None
            self._rows = {key: rows[key] for key in state.keys if key in rows} if is_known else None
        self._state = state

    def reaches(self, next_up: Offset) -> bool:
        """Return true: each state is complete."""
        return True

    async def advance(self, now: float) -> bool:
        """Advance to the newest state; return false, because there is never more.

        Raises:
            TableError, StorageError, OffsetError: It cannot be read.
        """
        before, after = self._newest, await self._refresh()
        if after.digest == before.digest and after.number == before.number:
            return False
        await self._take(after)
        found = [each for each in after.commits if each.number > before.number]
        for commit in found:
            is_last = commit is found[-1]
            columns = _list_columns(after.schema) if after.schema != before.schema else None
            self._new_commits.append(_make_facts(commit, columns if is_last else None))
        return False

    def pending(self, next_up: Offset | None) -> PendingWork | None:
        """Return the changes left to deliver from an offset on; None if commits are not known."""
        state = self._newest
        if next_up is None:
            return PendingWork(files=0, bytes=0)
        start = first_commit(next_up)
        commits = [each for each in state.commits if each.number >= start]
        if len(commits) < state.number + 1 - start or start < self._first_version:
            return None
        left = state.keys[next_up.position :] if next_up.phase is Phase.SNAPSHOT else []
        return PendingWork(
            files=sum(each.files_added + each.files_removed for each in commits) + len(left),
            bytes=sum(max(0, each.bytes_added) + max(0, each.bytes_removed) for each in commits)
            + sum(self._sizes.get(key, 0) for key in left),
        )

    def size(self) -> TableSize:
        """Return the figures of the newest state; its log is one file."""
        sizes, rows = self._sizes.values(), self._rows
        return TableSize(
            version=self.version,
            files=len(self._newest.keys),
            bytes=sum(sizes),
            rows=None if rows is None else sum(rows.values()),
            size_counts=size_counts(sizes),
            checkpoint_version=self.version,
            log_files=1,
        )


def _make_facts(commit: ObservedCommit, columns: Columns | None) -> CommitFacts:
    return CommitFacts(
        version=commit.number,
        timestamp_ms=commit.timestamp_ms,
        operation=commit.operation,
        files_added=commit.files_added,
        bytes_added=max(0, commit.bytes_added),
        files_removed=commit.files_removed,
        bytes_removed=max(0, commit.bytes_removed),
        columns=columns,
    )


def _list_columns(schema: bytes) -> Columns:
    return tuple((field.name, str(field.type)) for field in decode_schema(schema))
