"""A change task says exactly which rows of which file are which change. Small and picklable."""

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
    FILES = "files"
    SNAPSHOT = "snapshot"
    NONE = "none"


class ChangeMode(enum.StrEnum):
    """Which changes the user asked for (`--changes`)."""

    AUTO = "auto"
    CDF = "cdf"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """A deletion vector as an action names it.

    Attributes:
        storage_type: `u` (relative to the table), `p` (absolute) or `i` (inline).
        path_or_inline: As the log has it; identity is made of it.
        offset: Start in the file; None is not 0 (it is part of the identity).
        size_bytes: Length of the serialized bitmap.
        cardinality: Number of rows it removes.
        url: Resolved place of the file; empty when inline.

    Protocol: PROTOCOL.md#deletion-vectors
    """

    storage_type: str
    path_or_inline: str
    offset: int | None
    size_bytes: int
    cardinality: int
    url: str = ""

    @property
    def unique_id(self) -> str:
        """Identity of the vector for one file."""
        suffix = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The rows of a file that count: (all, or those in `include`) without those in `exclude`."""

    include: DeletionVector | None = None
    exclude: DeletionVector | None = None


ALL_ROWS = RowFilter()


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of one version, as the source's own text; shared by many tasks.

    Attributes:
        text: Delta's `schemaString`.
        partition_columns: Logical names, in order.
        column_mapping: `none`, `name` or `id`.
    """

    text: str
    partition_columns: tuple[str, ...] = ()
    column_mapping: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTask:
    """One file's share of one version's changes.

    Attributes:
        version, timestamp_us: `_commit_version` and `_commit_timestamp` (microseconds, UTC).
        position: Index of the task in its commit (or the file's key in a snapshot).
        change_source: How the rows were found.
        change_type: The change all rows are; None when the file has a `_change_type` column.
        url: The file, absolute.
        size_bytes: Size of the file as the log says; 0 when the log does not say.
        partition_values: (physical name, serialized value or None) pairs, as the log has them.
        rows: Which rows count.
        num_records: Physical rows in the file where statistics say so.
        table_id: Identity of the table in that version; empty where the source does not say.
        format: Name of the table format whose `TaskReader` reads it.
    """

    version: Version
    timestamp_us: int
    position: int
    change_source: ChangeSourceKind
    change_type: ChangeType | None
    url: str
    size_bytes: int
    partition_values: tuple[tuple[str, str | None], ...]
    schema: TableSchema
    rows: RowFilter = ALL_ROWS
    num_records: int | None = None
    table_id: str = ""
    format: str = "delta"


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
