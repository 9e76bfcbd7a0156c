"""Events of storages, of what tells about them, and of files beside the tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherUnavailable:
    """File events cannot be had for a folder; polling finds its commits."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryFailed:
    """A pattern could not be looked through; tables found before stay, another look comes soon.

    Attributes:
        pattern: Name of its section.
        is_known: Whether a look before succeeded.
    """

    pattern: str
    path: str
    error_code: str
    attempt: int
    error: str
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResumed:
    """A pattern was looked through again."""

    pattern: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemEnded:
    """What was wrong with a part's `path` concerns nobody any more: nothing asks for it now."""

    part: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAwaited:
    """Another process holds the daemon's state, or held it and died; `error` says how long."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTaken:
    """The daemon holds the state it has waited for."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLeaseLost:
    """Another daemon holds the state's lease now; this one shuts down."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsRefused:
    """The listener closes new connections at once; told once a minute. `reason` says why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUnsaved:
    """What the page draws of the past cannot be written; a restart begins without it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsFailed:
    """A queue of notifications cannot be asked; polling goes on, and it is asked again."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsResumed:
    """A queue of notifications answers again."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsMissed:
    """Commits came to a bucket, and the queue that is to tell of them has told of none."""

    path: str
    error_code: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRejected:
    """A message of a queue is nothing that S3 sends."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumDiffered:
    """A version checksum in the log differs from the replay, which goes on as the log says."""

    path: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSkipped:
    """A checkpoint in the log cannot be read; the table is read from what else the log has."""

    path: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequested:
    """Requests to a storage began; `operation`: list, get, head, put, delete or open."""

    operation: str
    count: int = 1
