"""A change task: which rows to read, and which change they are. Small and picklable."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from tailerd.changefeed.offset import Offset, Version


class ChangeType(enum.StrEnum):
    """Values of `_change_type`, as in Delta's change data feed."""

    INSERT = "insert"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"
    DELETE = "delete"


class ChangeSourceKind(enum.StrEnum):
    """How the rows of a commit are found."""

    CDC = "cdc"
    """Its change files."""
    VECTORS = "vectors"
    """Rows that only deletion vectors delete or restore."""
    ROWS = "rows"
    """The rows it removes and those it adds, compared."""
    FILES = "files"
    """All rows of added and removed files."""
    SNAPSHOT = "snapshot"
    NET = "net"
    """Two snapshots, compared."""
    LATE = "late"
    """As `rows`, of a commit that appeared after a newer one was delivered."""
    NONE = "none"


ChangeModeName = Literal["auto", "compare", "cdf", "files", "net"]
"""The name of a `ChangeMode`."""


class ChangeMode(enum.StrEnum):
    """The kind of changes that the user requested (`--changes`)."""

    AUTO = "auto"
    COMPARE = "compare"
    """As `auto`, but change files are ignored."""
    CDF = "cdf"
    FILES = "files"
    NET = "net"
    """The difference between two versions instead of each commit."""

    @property
    def is_exact(self) -> bool:
        """Whether exactly the changed rows of each commit are requested, from any source."""
        return self in (ChangeMode.AUTO, ChangeMode.COMPARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask:
    """The part of one version's changes that is read in one go. Opaque outside its format.

    Attributes:
        version, timestamp_us: `_commit_version` and `_commit_timestamp` (microseconds, UTC).
        position: Index of the task in its commit (or the file's key in a snapshot).
        change_source: How the rows were found.
        change_type: The change of all rows; None if each row has its own.
        size_bytes: Estimated bytes to read; 0 if not known.
        format: Name of the table format whose `TaskReader` reads it.
        payload: The reader's input; picklable, the format's own.
        num_records: Maximum number of rows; None if statistics are missing.
        table_id: Identity of the table in that version; empty if the source does not set it.
        view: A `transforms.View` of its rows; None: they are delivered as they are.
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
    view: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """Consecutive tasks of one version, delivered together.

    A commit with change files or deletion-vector differences is one group regardless of limits;
    other commits and snapshots may be split into several. `tasks` may be empty: a commit without
    row changes still advances the offset.

    Attributes:
        start: Offset of the first task.
        end: Offset once every task is delivered.
        operation: The operation its writer recorded; empty if none, and for a snapshot.
        files_added, bytes_added, files_removed, bytes_removed: Data files that the whole commit
            adds and removes, whether rows change or not; 0 for a snapshot.
        is_skipped: Whether its rows are not delivered because of what its writer recorded.
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
    is_skipped: bool = False

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(task.size_bytes for task in self.tasks)
