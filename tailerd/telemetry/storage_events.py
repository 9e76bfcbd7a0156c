"""Events of storages, of their notifications, and of the daemon's own files and listener."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherUnavailable:
    """File events are not available for a folder; polling finds its commits."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryFailed:
    """A pattern could not be listed; tables found before stay, and listing is retried soon.

    Attributes:
        pattern: Name of its section.
        is_known: Whether an earlier listing succeeded.
    """

    pattern: str
    path: str
    error_code: str
    attempt: int
    error: str
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResumed:
    """A pattern was listed again, after failures."""

    pattern: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemEnded:
    """A problem with a part's `path` is obsolete: the path is no longer used."""

    part: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAwaited:
    """The daemon waits for its state, which another process holds or held when it died.

    `error` says how long.
    """

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTaken:
    """The daemon holds the state for which it has waited."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLeaseLost:
    """Another daemon holds the state's lease now; this one shuts down."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUnsaved:
    """The history of the page cannot be written; a restart begins without it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsFailed:
    """A queue of notifications cannot be read; polling continues, and the queue is retried."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsResumed:
    """A queue of notifications can be read again."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsMissed:
    """Commits were written to a bucket, and its queue has delivered no notification of them."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRejected:
    """A message of a queue is not a notification of a bucket."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumDiffered:
    """A version checksum differs from the replayed log; the log is used."""

    path: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSkipped:
    """A checkpoint cannot be read; the table is read from the rest of its log."""

    path: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequested:
    """Requests to a storage were sent; `operation`: list, get, head, put, delete or open."""

    operation: str
    count: int = 1
