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
        "hint",
    }
)
"""The only names a log line may have beside `timestamp`, `level` and `event`."""

LINES: dict[type[events.Event], tuple[Level, str] | None] = {
    events.DaemonStarted: ("info", "The daemon listens."),
    events.ShutdownRequested: ("info", "The daemon was asked to stop."),
    events.ConfigReloaded: ("info", "A changed configuration was taken."),
    events.ConfigRejected: ("error", "A changed configuration is wrong; the old one stays."),
    events.TableAdded: ("debug", "A table was added."),
    events.TableAltered: ("info", "A table was altered."),
    events.TableRemoved: ("warning", "A table was removed."),
    events.TableRejected: ("warning", "A folder that was found cannot be served."),
    events.PipelineStarted: ("info", "A pipeline starts."),
    events.TableOpened: ("debug", "Table opened."),
    events.EngineLaunched: ("info", "Engine starting; this takes some seconds."),
    events.EngineStarted: ("info", "Engine started."),
    events.OffsetChosen: ("info", "A pipeline knows where it begins."),
    events.BacklogMeasured: ("debug", "The backlog was measured."),
    events.TableMeasured: None,
    events.GrowthUnavailable: ("warning", "The size of a table is not known."),
    events.CommitsDelivered: None,
    events.CommitObserved: ("debug", "A commit was seen."),
    events.SchemaObserved: ("debug", "A schema was read."),
    events.MaskUnmatched: ("warning", "Names in `web.mask` mask nothing in a table."),
    events.ZoneAssumed: ("warning", "Partition timestamps without a zone are taken as UTC."),
    events.SnapshotAdvanced: ("debug", "The snapshot advanced."),
    events.DeliveryAcknowledged: ("info", "Changes were delivered."),
    events.OffsetSaved: ("debug", "The offset was saved."),
    events.RetryScheduled: ("warning", "An attempt failed and is repeated."),
    events.SchemaAdopted: ("info", "The schema changed; a query with another one takes over."),
    events.PipelineFailed: ("error", "A pipeline stopped."),
    events.GapMet: ("error", "Changes are missing and the pipeline goes on behind them."),
    events.CommitSkipped: ("error", "A damaged commit was recorded and left out."),
    events.DeadLettersStored: ("warning", "Records were set aside as dead letters."),
    events.PipelinePaused: ("info", "A pipeline is held."),
    events.PipelineStopped: ("info", "A pipeline ended."),
    events.LogSurveyed: ("debug", "A log was looked at for maintenance."),
    events.MaintenanceStarted: ("debug", "A maintenance job begins."),
    events.MaintenanceProcessEnded: ("error", "The maintenance process ended."),
    events.LogMaintained: ("info", "A maintenance job was done."),
    events.MaintenanceFailed: ("warning", "A maintenance job failed and is tried again."),
    events.MaintenanceRefused: ("warning", "A log is left alone."),
    events.MaintenanceYielded: ("debug", "Another process maintains the table."),
    events.WatcherUnavailable: ("warning", "File events are not available, polling goes on."),
    events.DiscoveryFailed: (
        "warning",
        "A pattern of tables could not be looked through, those known stay.",
    ),
    events.DiscoveryResumed: ("info", "A pattern of tables was looked through again."),
    events.TroubleEnded: ("debug", "What was wrong is no longer asked for."),
    events.StateAwaited: ("warning", "The state is held by another process and waited for."),
    events.StateTaken: ("info", "The state was taken over."),
    events.StateForfeited: ("error", "Another daemon took the state over, and this one ends."),
    events.ConnectionsRefused: ("warning", "New connections are closed at once."),
    events.HistoryUnsaved: ("warning", "The page's history cannot be saved."),
    events.NotificationsFailed: (
        "warning",
        "Notifications cannot be had, polling goes on and they are tried again.",
    ),
    events.NotificationsResumed: ("info", "Notifications come again."),
    events.NotificationsMissed: ("warning", "A bucket does not notify the queue of its commits."),
    events.NotificationRejected: ("warning", "A notification is not understood."),
    events.ChecksumDiffered: ("warning", "A version checksum does not fit the log."),
    events.CheckpointSkipped: ("warning", "Damaged checkpoint skipped."),
    events.StorageRequested: None,
}
"""Level and constant sentence of every event; None for one that is only counted."""


def log_handler(stream: TextIO, log_format: LogFormat = "auto", level: Level = "info") -> Handler:
    """Return a handler that writes lines to `stream`.

    Args:
        stream: Usually standard error.
        log_format: `auto` is `human` on a terminal and `json` elsewhere.
        level: The least important level that is written.
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
            getattr(logger, event_level)(sentence, **line_fields(event))

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
