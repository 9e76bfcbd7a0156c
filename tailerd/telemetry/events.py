"""Events, named in the past tense. Field names are those of log fields and labels.

`table` is the configured name (or the path, for a command without configuration). Events contain
no rows and no secrets. A new event needs a line in `logs.py`, and in `metrics.py` or `status.py`
if it is counted or shown; a test keeps these consistent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, get_args

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
class EngineChosen:
    """The daemon runs its tables with this engine; `reason` says why."""

    engine: str
    reason: str


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
    """A pipeline has its starting position: a saved offset, or that of `from` or of a reset.

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
        is_idle: Whether the pipeline is paused or failed, so that this changes only its figures.
    """

    table: str
    engine: str
    version: int
    head_version: int
    versions: int
    oldest_timestamp_ms: int | None
    retention_seconds: float | None = None
    delivered_version: int | None = None
    is_idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMeasured:
    """The sizes of a table, its log and its undelivered changes were measured as of a version.

    Attributes:
        rows: Live rows; None if statistics are missing.
        size_counts: Files by size: bin n holds sizes above 2**(n-1) and up to 2**n bytes.
        commits_since_checkpoint, bytes_since_checkpoint: The commits that a reader replays.
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

    `details` describes each commit; empty if only the counts are known. `unchanged_updates` were
    left out because they change nothing that is delivered.
    """

    table: str
    engine: str
    commits: dict[str, int]
    details: tuple[DeliveredCommit, ...] = ()
    unchanged_updates: int = 0


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
class SchemaChanged:
    """The delivered columns changed with the rows of `version`; `summary` says how."""

    table: str
    engine: str
    version: int
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFailed:
    """A pipeline failed with a permanent error, and stopped."""

    table: str
    engine: str
    error_code: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapMet:
    """The offset was moved over commits that are not delivered: by `on_gap`, or by a reset.

    Attributes:
        start_version: The next version before the gap was met.
        end_version: The version at which delivery continues.
        error_code: missing_version, table_recreated, missing_data_file or reset.
    """

    table: str
    engine: str
    start_version: int
    end_version: int
    error_code: str
    error: str

    @classmethod
    def from_record(cls, table: str, engine: str, record: Mapping[str, str]) -> Self:
        """Return the event of a gap that a reset left, from its record in the state."""
        return cls(
            table=table,
            engine=engine,
            start_version=int(record["start_version"]),
            end_version=int(record["end_version"]),
            error_code=record["error_code"],
            error=record["error"],
        )


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
    """Rejected records went to a dead-letter topic or file, which `topic` names."""

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
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStopped:
    """A pipeline ended normally: the head was reached, or the process shuts down."""

    table: str
    engine: str
    is_complete: bool


# ---------------------------------------------------------------------- tables


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
    """Figures of one commit in the plan of a delivery; part of `CommitsDelivered`.

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
    """A table has these columns (name and type) since a version, or is read for the first time."""

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


# ---------------------------------------------------------------------- maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAssessed:
    """A table's log was assessed for maintenance, and its policies decided which jobs are due.

    Attributes:
        is_alone: Whether no pipeline of the daemon delivers this table.
        due, due_reasons: Jobs due now, and the reason of each; parallel.
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
        summary: The result of the job.
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
    | EngineChosen
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
    | SchemaChanged
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

SHOWN: frozenset[type] = frozenset(get_args(Event)) - {StorageRequested}
"""All events but the ones that are only counted, of which each commit has several."""
