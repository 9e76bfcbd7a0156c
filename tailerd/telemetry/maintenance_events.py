"""What log maintenance tells; part of `events`, whose rules hold here too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAssessed:
    """A table's log was looked at for maintenance, and its policies know what is to do.

    Attributes:
        is_alone: Whether nothing else of the daemon looks at this table.
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
    """A maintenance job starts, or a look at the log (`assessment`) or the size (`measure`)."""

    table: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceProcessEnded:
    """The process that maintains logs died, and is started again; `error` says why, and when.

    Attributes:
        attempt: How often since it last saw a table through.
    """

    attempt: int
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMaintained:
    """A job of log maintenance ended well.

    Attributes:
        job: checkpoint, log_compaction, checksum or cleanup.
        version: The newest it is about; of a cleanup the oldest that is left.
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
    """A job, or the look at the log before it (`assessment`), failed; it is tried again later."""

    table: str
    job: str
    error_code: str
    error: str
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRefused:
    """A table's log is left alone, for a reason that stays until somebody acts."""

    table: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceYielded:
    """Another process maintains the table now; `reason` names it."""

    table: str
    reason: str
