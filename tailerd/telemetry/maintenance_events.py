"""Events of log maintenance; part of `events`, whose rules apply here too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAssessed:
    """A table's log was assessed for maintenance, and its policies decided which jobs are due.

    Attributes:
        is_alone: Whether no pipeline of the daemon delivers this table.
        due, due_reasons: Jobs that are due now, and why each is; parallel.
    """

    table: str
    path: str
    version: int
    is_alone: bool
    due: tuple[str, ...] = ()
    due_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStarted:
    """A maintenance job starts, or reading the log (`assessment`) or the size (`measure`)."""

    table: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMaintained:
    """A job of log maintenance succeeded.

    Attributes:
        job: checkpoint, log_compaction, checksum or cleanup.
        version: The newest version it covers; of a cleanup the oldest that is left.
        result: written, already_there, nothing_to_say or deleted.
        files, bytes: Written, or deleted.
        reason: Why it was due.
        summary: What was done.
    """

    table: str
    job: str
    version: int
    result: str
    files: int
    bytes: int
    duration_seconds: float
    reason: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceFailed:
    """A job, or reading the log before it (`assessment`), failed; it is retried later."""

    table: str
    job: str
    error_code: str
    error: str
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRefused:
    """Maintenance of a table is skipped until an operator removes the reason."""

    table: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceYielded:
    """Another process maintains the table now; `reason` names it."""

    table: str
    reason: str
