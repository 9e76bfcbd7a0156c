"""Metrics of pipelines, of their deliveries, and of the maintenance of logs."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tailerd.clock import Clock
from tailerd.telemetry import events

STATES = {"starting": 0, "running": 1, "retrying": 2, "failed": 3, "stopped": 4, "paused": 5}

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
"""Seconds, for durations that are mostly milliseconds."""

PIPELINE = ("table", "engine")
"""Labels of metrics that a pipeline has one of."""


class PipelineMetrics:
    """States, lags and errors of pipelines."""

    def __init__(self, registry: CollectorRegistry, errors: Counter, clock: Clock) -> None:
        self._clock = clock
        self._errors = errors
        self._oldest_ms: dict[str, int | None] = {}
        self._state = Gauge(
            "tailerd_pipeline_state",
            "State: " + ", ".join(f"{code} {name}" for name, code in STATES.items()),
            PIPELINE,
            registry=registry,
        )
        self._head = Gauge(
            "tailerd_head_version", "Newest version of the table", PIPELINE, registry=registry
        )
        self._lag_versions = Gauge(
            "tailerd_lag_versions", "Versions not yet delivered", PIPELINE, registry=registry
        )
        self._lag_seconds = Gauge(
            "tailerd_lag_seconds",
            "Age of the oldest version not yet delivered; 0 when there is none",
            PIPELINE,
            registry=registry,
        )
        self._advance = Histogram(
            "tailerd_log_replay_seconds",
            "Time to read the commits found and to move the known state on by them",
            ("table",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._delivered = Gauge(
            "tailerd_offset_version",
            "Version the saved offset points at",
            PIPELINE,
            registry=registry,
        )

    def handlers(self) -> dict[type, Callable[..., None]]:
        """Return the handler of each event class."""
        return {
            events.PipelineStarted: self._on_started,
            events.BacklogMeasured: self._on_backlog,
            events.SnapshotAdvanced: self._on_snapshot,
            events.OffsetSaved: self._on_offset,
            events.RetryScheduled: self._on_retry,
            events.PipelineFailed: self._on_failed,
            events.PipelineStopped: self._on_stopped,
            events.PipelinePaused: self._on_paused,
            events.TableRemoved: self._on_removed,
            events.LogAssessed: self._on_assessed,
        }

    def _on_started(self, event: events.PipelineStarted) -> None:
        self._state.labels(event.table, event.engine).set(STATES["starting"])

    def _on_backlog(self, event: events.BacklogMeasured) -> None:
        labels = (event.table, event.engine)
        if not event.is_idle:
            self._state.labels(*labels).set(STATES["running"])
        self._head.labels(*labels).set(event.head_version)
        self._lag_versions.labels(*labels).set(event.versions)
        is_new = event.table not in self._oldest_ms
        self._oldest_ms[event.table] = event.oldest_timestamp_ms
        if is_new:
            # Computed at each scrape: the lag of a stuck pipeline grows without any event.
            self._lag_seconds.labels(*labels).set_function(lambda: self._measure_lag(event.table))

    def _measure_lag(self, table: str) -> float:
        return lag_seconds(self._oldest_ms.get(table), self._clock.now_ms())

    def _on_snapshot(self, event: events.SnapshotAdvanced) -> None:
        self._advance.labels(event.table).observe(event.duration_seconds)

    def _on_offset(self, event: events.OffsetSaved) -> None:
        self._delivered.labels(event.table, event.engine).set(event.version)

    def _on_retry(self, event: events.RetryScheduled) -> None:
        self._state.labels(event.table, event.engine).set(STATES["retrying"])
        self._errors.labels(event.table, event.error_code).inc()

    def _on_failed(self, event: events.PipelineFailed) -> None:
        self._state.labels(event.table, event.engine).set(STATES["failed"])
        self._errors.labels(event.table, event.error_code).inc()

    def _on_stopped(self, event: events.PipelineStopped) -> None:
        self._state.labels(event.table, event.engine).set(STATES["stopped"])

    def _on_paused(self, event: events.PipelinePaused) -> None:
        labels = (event.table, event.engine)
        self._state.labels(*labels).set(STATES["paused"])
        if self._oldest_ms.get(event.table, 0) is None:
            # The log is no longer polled: a lag of 0 may soon be wrong.
            for gauge in (self._head, self._lag_versions, self._lag_seconds):
                gauge.remove(*labels)
            del self._oldest_ms[event.table]

    def _on_removed(self, event: events.TableRemoved) -> None:
        # Counters stay; a gauge would keep a value that is no longer updated.
        gauges = (self._state, self._head, self._lag_versions, self._lag_seconds, self._delivered)
        for gauge in gauges:
            gauge.remove(event.table, event.engine)
        self._oldest_ms.pop(event.table, None)

    def _on_assessed(self, event: events.LogAssessed) -> None:
        if event.is_alone:
            self._head.labels(event.table, "none").set(event.version)


class PolicyMetrics:
    """Counts what policies did about missing commits, damaged commits and rejected records."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gaps = Counter(
            "tailerd_gaps_total",
            "Times the offset was moved over missing commits or to another table",
            ("table", "error_code"),
            registry=registry,
        )
        self._skipped = Counter(
            "tailerd_commits_skipped_total",
            "Damaged commits that were recorded and left out",
            ("table", "error_code"),
            registry=registry,
        )
        self._set_aside = Counter(
            "tailerd_dead_letter_records_total",
            "Records that a sink could not take and set aside",
            ("table", "error_code"),
            registry=registry,
        )

    def handlers(self) -> dict[type, Callable[..., None]]:
        """Return the handler of each event class."""
        return {
            events.GapMet: self._on_gap,
            events.CommitSkipped: self._on_skipped,
            events.DeadLettersStored: self._on_set_aside,
        }

    def _on_gap(self, event: events.GapMet) -> None:
        self._gaps.labels(event.table, event.error_code).inc()

    def _on_skipped(self, event: events.CommitSkipped) -> None:
        self._skipped.labels(event.table, event.error_code).inc()

    def _on_set_aside(self, event: events.DeadLettersStored) -> None:
        self._set_aside.labels(event.table, event.error_code).inc(event.records)


def lag_seconds(oldest_timestamp_ms: int | None, now_ms: int) -> float:
    """Return the age of the oldest undelivered version: 0 if there is none, never negative."""
    if oldest_timestamp_ms is None:
        return 0.0
    return max(0.0, (now_ms - oldest_timestamp_ms) / 1000)


class DeliveryMetrics:
    """Counts what sinks acknowledged."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("table", "sink", "engine")
        self._rows = Counter(
            "tailerd_changes_delivered_rows_total",
            "Change rows a sink acknowledged, by _change_type",
            (*labels, "op"),
            registry=registry,
        )
        self._bytes = Counter(
            "tailerd_changes_delivered_bytes_total",
            "Arrow bytes of the rows a sink acknowledged",
            labels,
            registry=registry,
        )
        self._delivery = Histogram(
            "tailerd_delivery_seconds",
            "Time from planning a step to its acknowledgement",
            labels,
            buckets=BUCKETS,
            registry=registry,
        )
        self._commit = Histogram(
            "tailerd_offset_commit_seconds",
            "Time to make an offset durable",
            PIPELINE,
            buckets=BUCKETS,
            registry=registry,
        )
        self._commits = Counter(
            "tailerd_commits_total",
            "Commits, by how rows are read: cdc, vectors, rows, files, net, late, none or skipped",
            (*PIPELINE, "mode"),
            registry=registry,
        )
        self._unchanged = Counter(
            "tailerd_unchanged_updates_total",
            "Updates left out because they change nothing that is delivered (unchanged: drop)",
            PIPELINE,
            registry=registry,
        )

    def handlers(self) -> dict[type, Callable[..., None]]:
        """Return the handler of each event class."""
        return {
            events.CommitsDelivered: self._on_commits,
            events.DeliveryAcknowledged: self._on_delivery,
            events.OffsetSaved: self._on_offset,
        }

    def _on_commits(self, event: events.CommitsDelivered) -> None:
        for mode, count in event.commits.items():
            self._commits.labels(event.table, event.engine, mode).inc(count)
        if event.unchanged_updates:
            self._unchanged.labels(event.table, event.engine).inc(event.unchanged_updates)

    def _on_delivery(self, event: events.DeliveryAcknowledged) -> None:
        labels = (event.table, event.sink, event.engine)
        for change_type, rows in event.rows.items():
            self._rows.labels(*labels, change_type).inc(rows)
        self._bytes.labels(*labels).inc(event.bytes)
        self._delivery.labels(*labels).observe(event.duration_seconds)

    def _on_offset(self, event: events.OffsetSaved) -> None:
        self._commit.labels(event.table, event.engine).observe(event.duration_seconds)


_JOBS = {
    "checkpoint": ("tailerd_checkpoint_total", "Checkpoints, by what became of them"),
    "log_compaction": ("tailerd_log_compaction_total", "Log compactions completed"),
    "checksum": ("tailerd_version_checksum_total", "Version checksums written"),
    "cleanup": ("tailerd_log_cleanup_total", "Log cleanups completed"),
}
"""Counters of jobs: job -> (name, unit)."""


class MaintenanceMetrics:
    """Results of jobs, and tables whose maintenance is skipped."""

    def __init__(self, registry: CollectorRegistry, errors: Counter) -> None:
        self._errors = errors
        self._job_seconds = Histogram(
            "tailerd_maintenance_job_seconds",
            "Duration of a successful maintenance job",
            ("table", "job"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._job_bytes = Counter(
            "tailerd_maintenance_bytes_total",
            "Bytes that maintenance wrote into logs, or deleted from them (cleanup)",
            ("table", "job"),
            registry=registry,
        )
        self._jobs = {
            job: Counter(name, about, ("table", "result"), registry=registry)
            for job, (name, about) in _JOBS.items()
        }
        self._other_jobs = Counter(
            "tailerd_maintenance_jobs_total",
            "Maintenance jobs without their own counter, by outcome",
            ("table", "job", "result"),
            registry=registry,
        )
        self._refused = Gauge(
            "tailerd_maintenance_refused",
            "1 while maintenance of a table's log is skipped",
            ("table",),
            registry=registry,
        )
        self._yielded = Counter(
            "tailerd_maintenance_yielded_total",
            "Times another process was found to maintain the table",
            ("table",),
            registry=registry,
        )

    def handlers(self) -> dict[type, Callable[..., None]]:
        """Return the handler of each event class."""
        return {
            events.LogAssessed: self._on_assessed,
            events.LogMaintained: self._on_maintained,
            events.MaintenanceFailed: self._on_maintenance_failed,
            events.MaintenanceRefused: self._on_maintenance_refused,
            events.MaintenanceYielded: self._on_yielded,
        }

    def _on_assessed(self, event: events.LogAssessed) -> None:
        self._refused.labels(event.table).set(0)

    def _on_maintained(self, event: events.LogMaintained) -> None:
        self._count_job(event.table, event.job, event.result)
        self._job_seconds.labels(event.table, event.job).observe(event.duration_seconds)
        self._job_bytes.labels(event.table, event.job).inc(event.bytes)

    def _count_job(self, table: str, job: str, result: str) -> None:
        if job in self._jobs:
            self._jobs[job].labels(table, result).inc()
        else:
            self._other_jobs.labels(table, job, result).inc()

    def _on_maintenance_failed(self, event: events.MaintenanceFailed) -> None:
        self._count_job(event.table, event.job, "failed")
        self._errors.labels(event.table, event.error_code).inc()

    def _on_maintenance_refused(self, event: events.MaintenanceRefused) -> None:
        self._refused.labels(event.table).set(1)
        self._errors.labels(event.table, event.error_code).inc()

    def _on_yielded(self, event: events.MaintenanceYielded) -> None:
        self._yielded.labels(event.table).inc()
