"""Everything worth telling, in the past tense. Field names are those of log fields and labels.

`table` is the configured name (or the path, for a command without configuration). Events name no
rows and carry no secrets. A new event needs a line in `logs.py`, and in `metrics.py` or
`status.py` where it is counted or shown; a test holds them together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStarted:
    """The process listens. `path` is the address of the pages, empty without a listener."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """A signal asked the process to end; what is in flight is finished first."""

    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStarted:
    """A table's pipeline is about to open its table."""

    table: str
    source: str
    sink: str
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChosen:
    """A pipeline knows where it begins: at a saved offset, or where `from` says."""

    table: str
    engine: str
    version: int
    is_resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogMeasured:
    """A pipeline looked at the log and knows what is to do; the first one means it is ready.

    Attributes:
        version: The version its offset points at.
        head_version: The newest version of the table.
        versions: Versions not yet delivered.
        oldest_timestamp_ms: Commit time of the oldest of them; None when there is none.
    """

    table: str
    engine: str
    version: int
    head_version: int
    versions: int
    oldest_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAdvanced:
    """The log was read from `start_version` on, and admits changes up to `end_version`."""

    table: str
    start_version: int
    end_version: int
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAcknowledged:
    """A sink took everything between two offsets.

    Attributes:
        start_version, end_version: First and last version with rows in it.
        rows: Rows by `_change_type`.
        bytes: Arrow bytes of the rows.
        duration_seconds: From the first plan to the acknowledgement.
    """

    table: str
    sink: str
    engine: str
    start_version: int
    end_version: int
    rows: dict[str, int]
    bytes: int
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSaved:
    """An offset is durable: everything before it is delivered."""

    table: str
    engine: str
    version: int
    offset: str
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled:
    """A retryable error happened; the same is tried again after a wait."""

    table: str
    engine: str
    attempt: int
    wait_seconds: float
    error_code: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFailed:
    """A pipeline met an error that does not go away by itself, and stopped."""

    table: str
    engine: str
    error_code: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapMet:
    """Commits are gone, or another table is there, and `on_gap` moved the offset over that.

    Attributes:
        start_version: The version that was to come next.
        end_version: The version delivery goes on with.
        error_code: What was met: missing_version or table_recreated.
    """

    table: str
    engine: str
    start_version: int
    end_version: int
    error_code: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSkipped:
    """A commit's rows cannot be read; `on_poison` recorded it in `path` and went on behind it."""

    table: str
    engine: str
    version: int
    error_code: str
    path: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStopped:
    """A pipeline ended as asked: the head was reached, or the process shuts down."""

    table: str
    engine: str
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherUnavailable:
    """File events cannot be had for a folder; polling finds its commits."""

    path: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumDiffered:
    """A version checksum in the log differs from the replay, which goes on as the log says."""

    path: str
    error_code: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRequested:
    """A request to a storage began; `operation` is its verb: list, get, head, put, delete, open."""

    operation: str


Event = (
    DaemonStarted
    | ShutdownRequested
    | PipelineStarted
    | OffsetChosen
    | BacklogMeasured
    | SnapshotAdvanced
    | DeliveryAcknowledged
    | OffsetSaved
    | RetryScheduled
    | PipelineFailed
    | GapMet
    | CommitSkipped
    | PipelineStopped
    | WatcherUnavailable
    | ChecksumDiffered
    | StorageRequested
)
