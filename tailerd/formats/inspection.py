"""The contract of table inspection: an optional part of a table format, for people and scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailerd.changefeed.offset import Version
from tailerd.formats.placement import TablePlace
from tailerd.formats.statistics import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """One version of a table.

    Attributes:
        timestamp_ms: When it was committed; None where that is no longer known.
        num_files, size_bytes: Live data files; None where the format does not count them.
        num_rows: Live rows; None where statistics do not tell.
        columns: Name and type of each column, for people, in order.
        schema: The same as the format writes it: what `json.dumps` takes.
        facts: All else the format has to say: what `json.dumps` takes, by key.
        shown: The same for people, by label.
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
        num_rows: Physical rows; None where statistics do not tell.
        deletion_vector: Identity of what marks deleted rows of it; None without any.
        deleted_rows: How many rows that are.
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
        operation: What its writer calls it; None where it does not say.
        bytes_added, bytes_removed: None where nobody counted them.
        change_files, change_bytes: Files that hold nothing but row changes.
        changes: How its row changes are read, in a word of the format's own.
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


class TableInspection(Protocol):
    """Looks at one table. Used by one task at a time."""

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest version not later than a timestamp.

        Raises:
            UsageError: The text is no timestamp, or before the first commit.
        """
        ...

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default.

        Rows that cannot be served do not keep a table from being described: the place is warned.

        Raises:
            NotATableError, MissingVersionError: It is not there.
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

        Those that can no longer be told are left out; the place is warned.

        Raises:
            NotATableError: There is no table.
            MissingVersionError: A commit is missing in between.
            TableError, StorageError: A commit cannot be read.
        """
        ...


Inspector = Callable[[TablePlace], TableInspection]
"""What a format offers to look at its tables: returns the inspection of one; asks nothing yet."""
