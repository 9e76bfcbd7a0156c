"""The contract of table statistics: an optional part of a table format.

A table is opened once; after that each commit updates its figures, at a cost proportional to the
commit's size. `pipeline.growth_tracker` decides when to poll. Maintenance opens it for each
measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailerd.changefeed.offset import Offset
from tailerd.formats.maintenance import CLEANUP
from tailerd.formats.part_request import PartRequest

Columns = tuple[tuple[str, str], ...]
"""Name and type of each column, human-readable."""


SIZE_BINS = 64


def size_counts(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return the number of files by size: bin n counts those above 2**(n-1) and up to 2**n."""
    counts = [0] * SIZE_BINS
    for size in sizes:
        counts[(size - 1).bit_length() if size > 1 else 0] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """A table at one version.

    Attributes:
        version: The version that the other fields describe.
        bytes: Of the live data files.
        rows: Live rows without deleted ones; None if statistics are missing.
        deletion_vectors: Live files that have a deletion vector.
        deleted_rows: Deleted rows in live files.
        size_counts: Files by size; see `size_counts`.
        checkpoint_version: The newest version that is stored whole; None without one.
        commits_since_checkpoint, bytes_since_checkpoint: The commits that a reader replays after
            the newest checkpoint, or from the beginning.
        log_files: Files of the log.
        retention_seconds: Minimum time for which a commit and its files are kept after its
            timestamp; None if there is no guarantee.
    """

    version: int
    files: int
    bytes: int
    rows: int | None
    deletion_vectors: int = 0
    deleted_rows: int = 0
    size_counts: tuple[int, ...]
    checkpoint_version: int | None
    commits_since_checkpoint: int = 0
    bytes_since_checkpoint: int = 0
    log_files: int
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWork:
    """Files that are not yet delivered, and their bytes."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """What one commit did.

    Attributes:
        rows_added, rows_removed: Physical rows of these files; None if statistics are missing.
        columns: Name and type of each column, human-readable, if the commit changes the schema;
            else None.
    """

    version: int
    timestamp_ms: int
    operation: str
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int
    rows_added: int | None = None
    rows_removed: int | None = None
    columns: Columns | None


class TableStatistics(Protocol):
    """Follows one table. Used by one task at a time; `now` is monotonic seconds everywhere."""

    @property
    def measured_again_after(self) -> frozenset[str]:
        """Maintenance jobs that change figures without a commit."""
        ...

    @property
    def table_id(self) -> str:
        """Identity of the table at `version`."""
        ...

    @property
    def version(self) -> int:
        """The version up to which commits are applied."""
        ...

    def has_identity(self, table_id: str) -> bool:
        """Return whether the table has this identity, or had it when it was opened or since."""
        ...

    def columns(self) -> Columns:
        """Return name and type of each column at `version`, human-readable.

        Raises:
            TableError: The schema cannot be read.
        """
        ...

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the table where delivery began, if that is near, else at the current position.

        Args:
            first: Where delivery began; None if nothing is delivered: then at the head.
            next_up: The first thing not yet delivered.

        Raises:
            TableError, StorageError: The table cannot be read.
        """
        ...

    def reaches(self, next_up: Offset) -> bool:
        """Return whether advancing to an offset is cheaper than opening the table again there."""
        ...

    async def advance(self, now: float) -> bool:
        """Apply a bounded number of new commits; return whether there may be more.

        Raises:
            TableError, StorageError: A commit cannot be read.
        """
        ...

    def take_commits(self) -> Sequence[CommitFacts]:
        """Return the commits that were applied since the last call, in order."""
        ...

    def expire(self) -> None:
        """Make the next `advance` list the log: maintenance has changed it."""
        ...

    def due_in(self, now: float) -> float | None:
        """Return the seconds until `advance` is due even without a new commit; None for never."""
        ...

    def pending(self, next_up: Offset | None) -> PendingWork | None:
        """Return the changes left to deliver from an offset on; None if that was not tracked.

        What is before the offset is dropped; without an offset everything is.
        """
        ...

    def size(self) -> TableSize:
        """Return the figures of the table at `version`."""
        ...


Statistics = Callable[[PartRequest], TableStatistics]
"""Returns the statistics of a table; makes no request yet."""


class CommitStatistics:
    """The common part of `TableStatistics` for formats whose figures change only with commits."""

    measured_again_after = frozenset({CLEANUP})

    def __init__(self) -> None:
        self._new_commits: list[CommitFacts] = []

    def take_commits(self) -> list[CommitFacts]:
        """Return the commits that were applied since the last call, in order."""
        taken, self._new_commits = self._new_commits, []
        return taken

    def expire(self) -> None:
        """Do nothing: every `advance` reads the table."""

    def due_in(self, now: float) -> float | None:
        """Return None: figures change only with commits."""
        return None
