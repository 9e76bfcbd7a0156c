"""One structured log line per event, to standard error: JSON, or for people at a terminal."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Literal, TextIO

import structlog

from tailerd.telemetry import events
from tailerd.telemetry.bus import Handler

LogFormat = Literal["auto", "human", "json"]
Level = Literal["debug", "info", "warning", "error"]

LOG_FIELDS = frozenset(
    {
        "table",
        "source",
        "sink",
        "engine",
        "pipeline",
        "job",
        "version",
        "start_version",
        "end_version",
        "offset",
        "path",
        "files",
        "rows",
        "bytes",
        "duration_seconds",
        "attempt",
        "error_code",
        "retryable",
        "error",
        "reason",
        "summary",
    }
)
"""The only names a log line may have in addition to `timestamp`, `level` and `event`."""

LINES: dict[type[events.Event], tuple[Level, str] | None] = {
    events.DaemonStarted: ("info", "Daemon started"),
    events.ShutdownRequested: ("info", "Shutdown requested"),
    events.ConfigReloaded: ("info", "Configuration reloaded"),
    events.ConfigRejected: ("error", "Configuration rejected, keeping the current one"),
    events.TableAdded: ("debug", "Table added"),
    events.TableAltered: ("info", "Table configuration changed"),
    events.TableRemoved: ("warning", "Table removed"),
    events.TableRejected: ("warning", "Discovered folder skipped"),
    events.PipelineStarted: ("info", "Pipeline starting"),
    events.TableOpened: ("debug", "Table opened"),
    events.EngineChosen: ("info", "Engine chosen"),
    events.EngineLaunched: ("info", "Engine starting, this takes some seconds"),
    events.EngineStarted: ("info", "Engine started"),
    events.OffsetChosen: ("info", "Starting position resolved"),
    events.BacklogMeasured: ("debug", "Backlog measured"),
    events.TableMeasured: None,
    events.GrowthUnavailable: ("warning", "Table size unavailable"),
    events.CommitsDelivered: None,
    events.CommitObserved: ("debug", "Commit observed"),
    events.SchemaObserved: ("debug", "Schema read"),
    events.MaskUnmatched: ("warning", "Names in `web.mask` match no column"),
    events.ZoneAssumed: ("warning", "Partition timestamps without a zone are read as UTC"),
    events.SnapshotAdvanced: ("debug", "Snapshot advanced"),
    events.DeliveryAcknowledged: ("info", "Batch delivered"),
    events.OffsetSaved: ("debug", "Offset saved"),
    events.RetryScheduled: ("warning", "Attempt failed, retrying"),
    events.SchemaAdopted: ("info", "Schema changed, restarting the query"),
    events.SchemaChanged: ("info", "Schema changed"),
    events.PipelineFailed: ("error", "Pipeline failed"),
    events.GapMet: ("error", "Gap in the changes, continuing after it"),
    events.CommitSkipped: ("error", "Corrupt commit recorded and skipped"),
    events.DeadLettersStored: ("warning", "Records stored as dead letters"),
    events.PipelinePaused: ("info", "Pipeline paused"),
    events.PipelineStopped: ("info", "Pipeline stopped"),
    events.LogAssessed: ("debug", "Log assessed for maintenance"),
    events.MaintenanceStarted: ("debug", "Maintenance job started"),
    events.LogMaintained: ("info", "Maintenance job completed"),
    events.MaintenanceFailed: ("warning", "Maintenance job failed, retrying"),
    events.MaintenanceRefused: ("warning", "Maintenance skipped"),
    events.MaintenanceYielded: ("debug", "Table is maintained by another process"),
    events.WatcherUnavailable: ("warning", "File events unavailable, polling instead"),
    events.DiscoveryFailed: (
        "warning",
        "Table discovery failed, keeping known tables",
    ),
    events.DiscoveryResumed: ("info", "Table discovery recovered"),
    events.ProblemEnded: ("debug", "Problem no longer relevant"),
    events.StateAwaited: ("warning", "State is locked by another process, waiting"),
    events.StateTaken: ("info", "State lock acquired"),
    events.StateLeaseLost: ("error", "State lock lost to another daemon, shutting down"),
    events.HistoryUnsaved: ("warning", "Console history not saved"),
    events.NotificationsFailed: (
        "warning",
        "Notifications unavailable, polling instead and retrying",
    ),
    events.NotificationsResumed: ("info", "Notifications recovered"),
    events.NotificationsMissed: ("warning", "Bucket sends no notifications for commits"),
    events.NotificationRejected: ("warning", "Notification not understood"),
    events.ChecksumDiffered: ("warning", "Version checksum does not match the log"),
    events.CheckpointSkipped: ("warning", "Corrupt checkpoint skipped"),
    events.StorageRequested: None,
}
"""Level and constant message of every event; None for one that is only counted."""


def log_handler(stream: TextIO, log_format: LogFormat = "auto", level: Level = "info") -> Handler:
    """Return a handler that writes lines to `stream`.

    Args:
        stream: Usually standard error.
        log_format: `auto` is `human` on a terminal and `json` elsewhere.
        level: The least important level that is written.

    A line that cannot be written, as on a full disk, is dropped.
    """
    is_human = log_format == "human" or (log_format == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), sort_keys=False)
        if is_human
        else structlog.processors.JSONRenderer()
    )
    least = logging.getLevelNamesMapping()[level.upper()]
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
    )

    def handle(event: events.Event) -> None:
        line = LINES[type(event)]
        if line is None:
            return
        event_level, sentence = line
        if logging.getLevelNamesMapping()[event_level.upper()] >= least:
            try:
                getattr(logger, event_level)(sentence, **line_fields(event))
            except BrokenPipeError:
                # Nobody reads any more: as for other commands, that ends the process.
                raise
            except OSError:
                # A disk that takes no log lines must not stop deliveries.
                return

    return handle


def line_fields(event: events.Event) -> dict[str, object]:
    """Return the log fields of an event; empty ones are left out."""
    values: dict[str, object] = {}
    for field in fields(event):
        if field.name not in LOG_FIELDS:
            continue
        value: object = getattr(event, field.name)
        if isinstance(value, dict):
            value = sum(value.values())
        if value not in ("", None):
            values[field.name] = round(value, 6) if isinstance(value, float) else value
    return values
