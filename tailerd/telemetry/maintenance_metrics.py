"""Metrics of the maintenance of logs."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tailerd.telemetry import events
from tailerd.telemetry.pipeline_metrics import BUCKETS

_JOBS = {
    "checkpoint": ("tailerd_checkpoint_total", "Checkpoints, by what became of them"),
    "log_compaction": ("tailerd_log_compaction_total", "Log compactions completed"),
    "checksum": ("tailerd_version_checksum_total", "Version checksums written"),
    "cleanup": ("tailerd_log_cleanup_total", "Log cleanups completed"),
}
"""Counters of jobs: job -> (name, what it counts)."""


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
            "Maintenance jobs without a counter of their own, by what became of them",
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
