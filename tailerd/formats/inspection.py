"""The contract of table inspection: an optional part of a table format, for people and scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailerd.changefeed.offset import Version
from tailerd.formats.part_request import PartRequest
from tailerd.formats.statistics import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """One version of a table.

    Attributes:
        timestamp_ms: When it was committed; None if no longer known.
        num_files, size_bytes: Live data files; None if the format does not count them.
        num_rows: Live rows; None if statistics are missing.
        columns: Name and type of each column, human-readable, in order.
        schema: The same as the format writes it; JSON-serialisable.
        facts: Further properties of the format; JSON-serialisable, by key.
        shown: The same, human-readable, by label.
    """

    table_id: str
    version: Version
    timestamp_ms: int | None
    num_files: int | None
    size_bytes: int | None
    num_rows: int | None
    columns: Columns
    schema: object
    name: str | None = None
    partition_columns: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    shown: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDescription:
    """One live data file.

    Attributes:
        num_rows: Physical rows; None if statistics are missing.
        deletion_vector: Identity of its deletion vector; None without one.
        deleted_rows: Number of rows that the vector deletes.
    """

    path: str
    size_bytes: int
    partition_values: Mapping[str, str | None]
    modification_time_ms: int | None
    num_rows: int | None
    deletion_vector: str | None = None
    deleted_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDescription:
    """One commit.

    Attributes:
        operation: The operation its writer recorded; None if it recorded none.
        bytes_added, bytes_removed: None if they were not counted.
        change_files, change_bytes: Files that contain only row changes.
        changes: How its row changes are read; one word, defined by the format.
        application_ids, user_metadata: As in `CommitFilter`; empty where the format has none.
    """

    version: Version
    timestamp_ms: int
    operation: str | None
    files_added: int
    files_removed: int
    bytes_added: int | None
    bytes_removed: int | None
    change_files: int
    change_bytes: int
    changes: str
    application_ids: tuple[str, ...] = ()
    user_metadata: str = ""


class TableInspection(Protocol):
    """Inspects one table. Used by one task at a time."""

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest version not later than a timestamp.

        Raises:
            UsageError: The text is not a timestamp, or before the first commit.
        """
        ...

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default.

        A table whose rows cannot be read is still described, with a warning
        (`PartRequest.warn`).

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            TableError, StorageError: It cannot be read.
        """
        ...

    def files(self, version: Version | None = None) -> AsyncIterator[Sequence[FileDescription]]:
        """Yield the live files of a version, some at a time: there may be millions.

        Raises:
            As `describe`.
        """
        ...

    def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        """Yield the newest `limit` commits, oldest first.

        Those that can no longer be read are left out, with a warning (`PartRequest.warn`).

        Raises:
            NotATableError: There is no table.
            MissingVersionError: A commit is missing in between.
            TableError, StorageError: A commit cannot be read.
        """
        ...


Inspector = Callable[[PartRequest], TableInspection]
"""Returns the inspection of a table; makes no request yet."""
