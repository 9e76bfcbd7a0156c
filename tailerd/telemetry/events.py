"""Events, named in the past tense. Field names are those of log fields and labels.

`table` is the configured name (or the path, for a command without configuration). Events contain
no rows and no secrets. A new event needs a line in `logs.py`, and in `metrics.py` or `status.py`
if it is counted or shown; a test keeps these consistent.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.telemetry.maintenance_events import LogAssessed as LogAssessed
from tailerd.telemetry.maintenance_events import LogMaintained as LogMaintained
from tailerd.telemetry.maintenance_events import MaintenanceFailed as MaintenanceFailed
from tailerd.telemetry.maintenance_events import MaintenanceRefused as MaintenanceRefused
from tailerd.telemetry.maintenance_events import MaintenanceStarted as MaintenanceStarted
from tailerd.telemetry.maintenance_events import MaintenanceYielded as MaintenanceYielded
from tailerd.telemetry.storage_events import CheckpointSkipped as CheckpointSkipped
from tailerd.telemetry.storage_events import ChecksumDiffered as ChecksumDiffered
from tailerd.telemetry.storage_events import DiscoveryFailed as DiscoveryFailed
from tailerd.telemetry.storage_events import DiscoveryResumed as DiscoveryResumed
from tailerd.telemetry.storage_events import HistoryUnsaved as HistoryUnsaved
from tailerd.telemetry.storage_events import NotificationRejected as NotificationRejected
from tailerd.telemetry.storage_events import NotificationsFailed as NotificationsFailed
from tailerd.telemetry.storage_events import NotificationsMissed as NotificationsMissed
from tailerd.telemetry.storage_events import NotificationsResumed as NotificationsResumed
from tailerd.telemetry.storage_events import ProblemEnded as ProblemEnded
from tailerd.telemetry.storage_events import StateAwaited as StateAwaited
from tailerd.telemetry.storage_events import StateLeaseLost as StateLeaseLost
from tailerd.telemetry.storage_events import StateTaken as StateTaken
from tailerd.telemetry.storage_events import StorageRequested as StorageRequested
from tailerd.telemetry.storage_events import WatcherUnavailable as WatcherUnavailable
from tailerd.telemetry.table_events import CommitObserved as CommitObserved
from tailerd.telemetry.table_events import DeliveredCommit as DeliveredCommit
from tailerd.telemetry.table_events import MaskUnmatched as MaskUnmatched
from tailerd.telemetry.table_events import SchemaObserved as SchemaObserved
from tailerd.telemetry.table_events import ZoneAssumed as ZoneAssumed


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStarted:
    """The process listens. `path` is the address of the pages, empty without a listener."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """A signal asked the process to end; deliveries in flight are finished first."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloaded:
    """A changed configuration file was applied; `path` is the file."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRejected:
    """A changed configuration file is invalid; the previous configuration stays in effect."""

    path: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAdded:
    """A table was added to the daemon: at its start, by a new configuration, or by a pattern."""

    table: str
    engine: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAltered:
    """A table's settings changed; its pipeline restarts with them at its saved offset."""

    table: str
    engine: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRemoved:
    """A table was removed from the daemon; its saved offset is kept. `reason` says why."""

    table: str
    engine: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRejected:
    """A folder that a pattern finds cannot be a table of this daemon; `reason` says why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStarted:
    """A pipeline is about to open its table; `guarantee` is the delivery guarantee of its sink."""

    table: str
    source: str
    sink: str
    engine: str
    guarantee: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOpened:
    """A pipeline has opened its table: its format, and the capabilities of that format."""

    table: str
    format: str
    capabilities: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunched:
    """An engine that takes seconds to start was launched: Spark with its Java process."""

    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStarted:
    """That engine is ready."""

    engine: str
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChosen:
    """A pipeline has its starting position: a saved offset, or the place of `from` or a reset.

    `offset` is its JSON text, empty if only the version is known.
    """

    table: str
    engine: str
    version: int
    is_resumed: bool
    offset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogMeasured:
    """A pipeline polled the log and measured its backlog; the first one means it is ready.

    Attributes:
        version: The version its offset points at.
        head_version: The newest version of the table.
        versions: Versions not yet delivered.
        oldest_timestamp_ms: Commit time of the oldest of them; None if there is none.
        retention_seconds: How long after its time a commit and its files are kept at least; None
            if the source does not know.
        delivered_version: The newest version that is delivered completely; None if there is none,
            or it is not known.
    """

    table: str
    engine: str
    version: int
    head_version: int
    versions: int
    oldest_timestamp_ms: int | None
    retention_seconds: float | None = None
    delivered_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMeasured:
    """The sizes of a table, its log and its undelivered changes were measured as of a version.

    Attributes:
        rows: Live rows; None if statistics are missing.
        size_counts: Files by size: bin n holds sizes above 2**(n-1) and up to 2**n bytes.
        commits_since_checkpoint, bytes_since_checkpoint: What a reader replays.
        retention_seconds: As of `BacklogMeasured`.
        pending_files, pending_bytes: Files of changes not yet delivered; None if not known.
    """

    table: str
    version: int
    files: int
    bytes: int
    rows: int | None
    deletion_vectors: int
    deleted_rows: int
    size_counts: tuple[int, ...]
    checkpoint_version: int | None
    commits_since_checkpoint: int
    bytes_since_checkpoint: int
    log_files: int
    retention_seconds: float | None
    pending_files: int | None
    pending_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthUnavailable:
    """The size of a table could not be measured; its changes are delivered anyway."""

    table: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsDelivered:
    """Commits were delivered, rows or not; `commits` counts them by how they were read.

    `details` describes each commit; empty if only the counts are known.
    """

    table: str
    engine: str
    commits: dict[str, int]
    details: tuple[DeliveredCommit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAdvanced:
    """The log was read from `start_version` on, and admits changes up to `end_version`."""

    table: str
    start_version: int
    end_version: int
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAcknowledged:
    """A sink acknowledged everything between two offsets.

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
    """A retryable error happened; the operation is retried after a wait."""

    table: str
    engine: str
    attempt: int
    wait_seconds: float
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAdopted:
    """The table's schema changed; the pipeline's next query uses the schema of `version`."""

    table: str
    engine: str
    version: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFailed:
    """A pipeline failed with a permanent error, and stopped."""

    table: str
    engine: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapMet:
    """Commits are gone, or the table was replaced, and `on_gap` moved the offset over the gap.

    Attributes:
        start_version: The next version before the gap was met.
        end_version: The version at which delivery continues.
        error_code: missing_version or table_recreated.
    """

    table: str
    engine: str
    start_version: int
    end_version: int
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSkipped:
    """A commit's rows cannot be read; it was recorded in `path` and skipped."""

    table: str
    engine: str
    version: int
    error_code: str
    path: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersStored:
    """Records that a sink rejected went to a dead-letter topic; the delivery is complete."""

    table: str
    sink: str
    error_code: str
    topic: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePaused:
    """An operator paused a pipeline; it continues when resumed."""

    table: str
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStopped:
    """A pipeline ended normally: the head was reached, or the process shuts down."""

    table: str
    engine: str
    is_complete: bool


Event = (
    DaemonStarted
    | ShutdownRequested
    | ConfigReloaded
    | ConfigRejected
    | TableAdded
    | TableAltered
    | TableRemoved
    | TableRejected
    | PipelineStarted
    | TableOpened
    | EngineLaunched
    | EngineStarted
    | OffsetChosen
    | BacklogMeasured
    | TableMeasured
    | GrowthUnavailable
    | CommitsDelivered
    | CommitObserved
    | SchemaObserved
    | MaskUnmatched
    | ZoneAssumed
    | SnapshotAdvanced
    | DeliveryAcknowledged
    | OffsetSaved
    | RetryScheduled
    | SchemaAdopted
    | PipelineFailed
    | GapMet
    | CommitSkipped
    | DeadLettersStored
    | PipelinePaused
    | PipelineStopped
    | LogAssessed
    | MaintenanceStarted
    | LogMaintained
    | MaintenanceFailed
    | MaintenanceRefused
    | MaintenanceYielded
    | WatcherUnavailable
    | DiscoveryFailed
    | DiscoveryResumed
    | ProblemEnded
    | StateAwaited
    | StateTaken
    | StateLeaseLost
    | HistoryUnsaved
    | NotificationsFailed
    | NotificationsResumed
    | NotificationsMissed
    | NotificationRejected
    | ChecksumDiffered
    | CheckpointSkipped
    | StorageRequested
)
