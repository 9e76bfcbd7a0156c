"""The contract of table statistics: an optional part of a table format.

A table is opened once; from then on each commit moves its figures on, for about what the commit is
long. `pipeline.growth_keeper` and the maintenance process decide when to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailerd.changefeed.offset import Offset
from tailerd.formats.maintenance import CLEANUP
from tailerd.formats.placement import TablePlace

Columns = tuple[tuple[str, str], ...]
"""Name and type of each column, as people write them."""


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
        version: The version all else is of.
        bytes: Of the live data files.
        rows: Live rows without deleted ones; None where statistics do not tell.
        deletion_vectors: Files that some rows are deleted of without being rewritten.
        deleted_rows: Rows of live files that are deleted.
        size_counts: Files by size; see `size_counts`.
        checkpoint_version: The newest version that is stored whole; None without one.
        commits_since_checkpoint, bytes_since_checkpoint: What a reader replays on top of the
            newest checkpoint, or from the beginning.
        log_files: Files of the log.
        retention_seconds: How long after its time a commit and its files are kept at least; None
            where nobody promises that.
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
        rows_added, rows_removed: Physical rows of these files; None where statistics do not tell.
        columns: Name and type of each column, for people, where the commit changes the schema;
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
        """The version it has come to."""
        ...

    def is_of(self, table_id: str) -> bool:
        """Return whether the table has this identity, or had it when it was opened or since."""
        ...

    def columns(self) -> Columns:
        """Return name and type of each column at `version`, for people.

        Raises:
            TableError: The schema cannot be read.
        """
        ...

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the table where delivery began, if that is near, else where it stands.

        Args:
            first: Where delivery began; None where nothing is delivered: then at the head.
            next_up: The first thing not yet delivered.

        Raises:
            TableError, StorageError: The table cannot be read.
        """
        ...

    def reaches(self, next_up: Offset) -> bool:
        """Return whether advancing to an offset is cheaper than to open the table again there."""
        ...

    async def advance(self, now: float) -> bool:
        """Apply commits that have come, a bounded number; tell whether more may be there.

        Raises:
            TableError, StorageError: A commit cannot be read.
        """
        ...

    def take_commits(self) -> Sequence[CommitFacts]:
        """Return the commits that were applied since this was asked last, in order."""
        ...

    def expire(self) -> None:
        """Let the next `advance` look at the log itself: maintenance has changed it."""
        ...

    def due_in(self, now: float) -> float | None:
        """Return the seconds until `advance` is of use although no commit came; None for never."""
        ...

    def pending(self, next_up: Offset | None) -> PendingWork | None:
        """Return what is to deliver from an offset on; None where that was not followed.

        What lies before is forgotten; without an offset everything is.
        """
        ...

    def size(self) -> TableSize:
        """Return the table as it is at `version`."""
        ...


Statistics = Callable[[TablePlace], TableStatistics]
"""What a format offers to measure its tables: returns the statistics of one; asks nothing yet."""


class CommitStatistics:
    """The half of `TableStatistics` that is the same where figures change with commits alone."""

    measured_again_after = frozenset({CLEANUP})

    def __init__(self) -> None:
        self._new_commits: list[CommitFacts] = []

    def take_commits(self) -> list[CommitFacts]:
        """Return the commits that were applied since this was asked last, in order."""
        taken, self._new_commits = self._new_commits, []
        return taken

    def expire(self) -> None:
        """Do nothing: every `advance` looks at the table."""

    def due_in(self, now: float) -> float | None:
        """Return None: figures change with commits alone."""
        return None
