"""Events of a table itself, independent of its pipeline; part of `events`, whose rules apply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitObserved:
    """A commit appeared in a table's log.

    Attributes:
        timestamp_ms: Its in-commit timestamp, or the time of its file.
        operation: As its writer named it; empty if not given.
        rows_added, rows_removed: Physical rows in these files; None if statistics are missing.
    """

    table: str
    version: int
    timestamp_ms: int
    operation: str
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int
    rows_added: int | None
    rows_removed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredCommit:
    """What the plan of a delivery says of one commit in it; part of `CommitsDelivered`.

    Attributes:
        mode: How its rows were found: cdc, vectors, rows, files, net, late or none.
    """

    version: int
    timestamp_ms: int
    mode: str
    operation: str
    files_added: int
    bytes_added: int
    files_removed: int
    bytes_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaObserved:
    """A table has this schema since a version, or is read for the first time.

    Attributes:
        columns: Name and type of each column, in order.
    """

    table: str
    version: int
    timestamp_ms: int
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneAssumed:
    """Partition timestamps of a table have no zone and were taken as UTC; emitted once."""

    path: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskUnmatched:
    """Masked names match no column of a table whose rows the page shows."""

    table: str
    reason: str
