"""A change task says exactly which rows are which change. Small and picklable."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tailerd.changefeed.offset import Offset, Version


class ChangeType(enum.StrEnum):
    """Values of `_change_type`, as Delta's change data feed spells them."""

    INSERT = "insert"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"
    DELETE = "delete"


class ChangeSourceKind(enum.StrEnum):
    """How the rows of a commit are found."""

    CDC = "cdc"
    """Its change files."""
    VECTORS = "vectors"
    """Rows that only deletion vectors take away or give back."""
    ROWS = "rows"
    """The rows it takes away and those it brings, compared."""
    FILES = "files"
    """All rows of added and removed files."""
    SNAPSHOT = "snapshot"
    NET = "net"
    """Two snapshots, compared."""
    LATE = "late"
    """As `rows`, of a commit that appeared when a newer one was delivered already."""
    NONE = "none"


class ChangeMode(enum.StrEnum):
    """Which changes the user asked for (`--changes`)."""

    AUTO = "auto"
    CDF = "cdf"
    FILES = "files"
    NET = "net"
    """Not of each commit, but between two versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask:
    """A share of one version's changes that is read in one go. Opaque outside its format.

    Attributes:
        version, timestamp_us: `_commit_version` and `_commit_timestamp` (microseconds, UTC).
        position: Index of the task in its commit (or the file's key in a snapshot).
        change_source: How the rows were found.
        change_type: The change all rows are; None when each row says its own.
        size_bytes: About how many bytes reading takes; 0 where that is not known.
        format: Name of the table format whose `TaskReader` reads it.
        payload: What that reader needs; picklable, the format's own.
        num_records: Rows at most, where statistics say so.
        table_id: Identity of the table in that version; empty where the source does not say.
    """

    version: Version
    timestamp_us: int
    position: int
    change_source: ChangeSourceKind
    change_type: ChangeType | None
    size_bytes: int
    format: str
    payload: object
    num_records: int | None = None
    table_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """Consecutive tasks of one version, delivered together.

    A commit with change files or deletion-vector differences is one group whatever the limits;
    other commits and snapshots may come in several. `tasks` may be empty: a commit without row
    changes still moves the offset.

    Attributes:
        start: Offset of the first task.
        end: Offset once every task is delivered.
        operation: What its writer called it; empty where it said nothing, and for a snapshot.
        files_added, bytes_added, files_removed, bytes_removed: Data files that the whole commit
            adds and removes, whether rows change or not; 0 for a snapshot.
    """

    start: Offset
    end: Offset
    version: Version
    timestamp_us: int
    change_source: ChangeSourceKind
    tasks: tuple[ChangeTask, ...]
    operation: str = ""
    files_added: int = 0
    bytes_added: int = 0
    files_removed: int = 0
    bytes_removed: int = 0

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(task.size_bytes for task in self.tasks)
