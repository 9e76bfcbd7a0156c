"""Prometheus metrics, derived from events. The only module that knows prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tailerd.clock import Clock, SystemClock
from tailerd.telemetry import events, problems
from tailerd.telemetry.table_gauges import TableGauges

CONTENT_TYPE = CONTENT_TYPE_LATEST

LABELS = frozenset(
    {"table", "source", "sink", "engine", "job", "error_code", "op", "mode", "result"}
)
"""All label names in use; `op` is `_change_type` of rows or the verb of a storage request, `mode`
how a commit was read, `result` what became of a maintenance job."""

STATES = {"starting": 0, "running": 1, "retrying": 2, "failed": 3, "stopped": 4, "paused": 5}

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_PIPELINE = ("table", "engine")


class Metrics:
    """Keeps the process's metrics in a registry of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._oldest_ms: dict[str, int | None] = {}
        self._gauges = TableGauges(clock)
        self._problems = problems.ProblemBoard(clock)
        self._handlers: dict[type, Callable[..., None]] = {
            **dict.fromkeys(problems.HANDLED, self._problems.handle),
            events.PipelineStarted: self._on_started,
            events.BacklogMeasured: self._on_backlog,
            events.SnapshotAdvanced: self._on_snapshot,
            events.CommitsDelivered: self._on_commits,
            events.OffsetChosen: self._gauges.handle,
            events.TableMeasured: self._gauges.handle,
            events.GrowthUnavailable: self._on_growth_unavailable,
            events.DeliveryAcknowledged: self._on_delivery,
            events.OffsetSaved: self._on_offset,
            events.RetryScheduled: self._on_retry,
            events.PipelineFailed: self._on_failed,
            events.GapMet: self._on_gap,
            events.CommitSkipped: self._on_skipped,
            events.DeadLettersStored: self._on_set_aside,
            events.PipelineStopped: self._on_stopped,
            events.LogAssessed: self._on_assessed,
            events.LogMaintained: self._on_maintained,
            events.MaintenanceFailed: self._on_maintenance_failed,
            events.MaintenanceRefused: self._on_maintenance_refused,
            events.MaintenanceProcessEnded: lambda _: self._restarts.inc(),
            events.MaintenanceYielded: self._on_yielded,
            events.PipelinePaused: self._on_paused,
            events.TableRemoved: self._on_removed,
            events.StorageRequested: self._on_storage,
        }
        self._register_collectors()
        self._make_pipeline_metrics()
        self._make_policy_metrics()
        self._make_delivery_metrics()
        self._make_storage_metrics()
        self._make_maintenance_metrics()

    @property
    def handled(self) -> frozenset[type]:
        """The events that change a metric."""
        return frozenset(self._handlers)

    def handle(self, event: events.Event) -> None:
        """Count an event; those without a metric are passed over."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def watch_memory(self, budget_bytes: int, used_bytes: Callable[[], int]) -> None:
        """Show the rows that are read ahead of the sinks; `used_bytes` is asked at each scrape."""
        budget = Gauge(
            "tailerd_memory_budget_bytes",
            "Bytes of rows that all tables may read ahead of their sinks",
            registry=self._registry,
        )
        budget.set(budget_bytes)
        used = Gauge(
            "tailerd_memory_used_bytes",
            "Bytes of rows that are read ahead now",
            registry=self._registry,
        )
        used.set_function(used_bytes)

    def _register_collectors(self) -> None:
        self._registry.register(_BoardCollector(self._gauges, self._problems))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def _make_pipeline_metrics(self) -> None:
        r = self._registry
        self._state = Gauge(
            "tailerd_pipeline_state",
            "State: " + ", ".join(f"{code} {name}" for name, code in STATES.items()),
            _PIPELINE,
            registry=r,
        )
        self._head = Gauge(
            "tailerd_head_version", "Newest version of the table", _PIPELINE, registry=r
        )
        self._lag_versions = Gauge(
            "tailerd_lag_versions", "Versions not yet delivered", _PIPELINE, registry=r
        )
        self._lag_seconds = Gauge(
            "tailerd_lag_seconds",
            "Age of the oldest version not yet delivered; 0 when there is none",
            _PIPELINE,
            registry=r,
        )
        self._errors = Counter(
            "tailerd_errors_total", "Errors, retried ones too", ("table", "error_code"), registry=r
        )
        self._advance = Histogram(
            "tailerd_log_replay_seconds",
            "Time to read the commits found and to move the known state on by them",
            ("table",),
            buckets=_FAST,
            registry=r,
        )

    def _make_policy_metrics(self) -> None:
        r = self._registry
        self._gaps = Counter(
            "tailerd_gaps_total",
            "Times the offset was moved over missing commits or to another table",
            ("table", "error_code"),
            registry=r,
        )
        self._skipped = Counter(
            "tailerd_commits_skipped_total",
            "Damaged commits that were recorded and left out",
            ("table", "error_code"),
            registry=r,
        )
        self._set_aside = Counter(
            "tailerd_dead_letter_records_total",
            "Records that a sink could not take and set aside",
            ("table", "error_code"),
            registry=r,
        )

    def _make_delivery_metrics(self) -> None:
        r = self._registry
        labels = ("table", "sink", "engine")
        self._rows = Counter(
            "tailerd_changes_delivered_rows_total",
            "Change rows a sink acknowledged, by _change_type",
            (*labels, "op"),
            registry=r,
        )
        self._bytes = Counter(
            "tailerd_changes_delivered_bytes_total",
            "Arrow bytes of the rows a sink acknowledged",
            labels,
            registry=r,
        )
        self._delivery = Histogram(
            "tailerd_delivery_seconds",
            "Time from planning a step to its acknowledgement",
            labels,
            buckets=_FAST,
            registry=r,
        )
        self._commit = Histogram(
            "tailerd_offset_commit_seconds",
            "Time to make an offset durable",
            _PIPELINE,
            buckets=_FAST,
            registry=r,
        )
        self._commits = Counter(
            "tailerd_commits_total",
            "Commits delivered, rows or not, by how: cdc, vectors, rows, files, net, late or none",
            (*_PIPELINE, "mode"),
            registry=r,
        )
        self._delivered = Gauge(
            "tailerd_offset_version", "Version the saved offset points at", _PIPELINE, registry=r
        )

    def _make_storage_metrics(self) -> None:
        self._requests = Counter(
            "tailerd_storage_requests_total",
            "Requests to storage, by verb",
            ("op",),
            registry=self._registry,
        )

    def _make_maintenance_metrics(self) -> None:
        r = self._registry
        self._job_seconds = Histogram(
            "tailerd_maintenance_job_seconds",
            "Duration of a successful maintenance job",
            ("table", "job"),
            buckets=_FAST,
            registry=r,
        )
        self._make_keeper_metrics()
        self._job_bytes = Counter(
            "tailerd_maintenance_bytes_total",
            "Bytes that maintenance wrote into logs, or deleted from them (cleanup)",
            ("table", "job"),
            registry=r,
        )
        results = {
            "checkpoint": ("tailerd_checkpoint_total", "Checkpoints, by what became of them"),
            "log_compaction": ("tailerd_log_compaction_total", "Log compactions completed"),
            "checksum": ("tailerd_version_checksum_total", "Version checksums written"),
            "cleanup": ("tailerd_log_cleanup_total", "Log cleanups completed"),
        }
        self._jobs = {
            job: Counter(name, text, ("table", "result"), registry=r)
            for job, (name, text) in results.items()
        }
        self._other_jobs = Counter(
            "tailerd_maintenance_jobs_total",
            "Maintenance jobs without a counter of their own, by what became of them",
            ("table", "job", "result"),
            registry=r,
        )
        self._refused = Gauge(
            "tailerd_maintenance_refused",
            "1 while maintenance of a table's log is skipped",
            ("table",),
            registry=r,
        )

    def _make_keeper_metrics(self) -> None:
        r = self._registry
        self._yielded = Counter(
            "tailerd_maintenance_yielded_total",
            "Times another process was found to maintain the table",
            ("table",),
            registry=r,
        )
        self._restarts = Counter(
            "tailerd_maintenance_restarts_total",
            "Times the process that maintains logs died and was started again",
            registry=r,
        )

    def _on_assessed(self, event: events.LogAssessed) -> None:
        self._refused.labels(event.table).set(0)
        if event.is_alone:
            self._head.labels(event.table, "none").set(event.version)

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

    def _on_started(self, event: events.PipelineStarted) -> None:
        self._state.labels(event.table, event.engine).set(STATES["starting"])

    def _on_commits(self, event: events.CommitsDelivered) -> None:
        for mode, count in event.commits.items():
            self._commits.labels(event.table, event.engine, mode).inc(count)

    def _on_growth_unavailable(self, event: events.GrowthUnavailable) -> None:
        self._gauges.handle(event)
        self._errors.labels(event.table, event.error_code).inc()

    def _on_backlog(self, event: events.BacklogMeasured) -> None:
        self._gauges.handle(event)
        labels = (event.table, event.engine)
        self._state.labels(*labels).set(STATES["running"])
        self._head.labels(*labels).set(event.head_version)
        self._lag_versions.labels(*labels).set(event.versions)
        is_new = event.table not in self._oldest_ms
        self._oldest_ms[event.table] = event.oldest_timestamp_ms
        if is_new:
            # Asked at each scrape: the lag of a stuck pipeline grows although nothing happens.
            self._lag_seconds.labels(*labels).set_function(lambda: self._lag_of(event.table))

    def _lag_of(self, table: str) -> float:
        return lag_seconds(self._oldest_ms.get(table), self._clock.now_ms())

    def _on_snapshot(self, event: events.SnapshotAdvanced) -> None:
        self._advance.labels(event.table).observe(event.duration_seconds)

    def _on_delivery(self, event: events.DeliveryAcknowledged) -> None:
        labels = (event.table, event.sink, event.engine)
        for change_type, rows in event.rows.items():
            self._rows.labels(*labels, change_type).inc(rows)
        self._bytes.labels(*labels).inc(event.bytes)
        self._delivery.labels(*labels).observe(event.duration_seconds)

    def _on_offset(self, event: events.OffsetSaved) -> None:
        self._gauges.handle(event)
        self._delivered.labels(event.table, event.engine).set(event.version)
        self._commit.labels(event.table, event.engine).observe(event.duration_seconds)

    def _on_retry(self, event: events.RetryScheduled) -> None:
        self._state.labels(event.table, event.engine).set(STATES["retrying"])
        self._errors.labels(event.table, event.error_code).inc()

    def _on_failed(self, event: events.PipelineFailed) -> None:
        self._state.labels(event.table, event.engine).set(STATES["failed"])
        self._errors.labels(event.table, event.error_code).inc()

    def _on_gap(self, event: events.GapMet) -> None:
        self._gaps.labels(event.table, event.error_code).inc()

    def _on_skipped(self, event: events.CommitSkipped) -> None:
        self._skipped.labels(event.table, event.error_code).inc()

    def _on_set_aside(self, event: events.DeadLettersStored) -> None:
        self._set_aside.labels(event.table, event.error_code).inc(event.records)

    def _on_stopped(self, event: events.PipelineStopped) -> None:
        self._state.labels(event.table, event.engine).set(STATES["stopped"])

    def _on_paused(self, event: events.PipelinePaused) -> None:
        labels = (event.table, event.engine)
        self._state.labels(*labels).set(STATES["paused"])
        self._gauges.handle(event)
        if self._oldest_ms.get(event.table, 0) is None:
            # Nobody looks at the log now: that nothing is behind may soon be wrong.
            for gauge in (self._head, self._lag_versions, self._lag_seconds):
                gauge.remove(*labels)
            del self._oldest_ms[event.table]

    def _on_removed(self, event: events.TableRemoved) -> None:
        self._gauges.handle(event)
        # Counters stay; a gauge would go on telling what is no longer looked at.
        gauges = (self._state, self._head, self._lag_versions, self._lag_seconds, self._delivered)
        for gauge in gauges:
            gauge.remove(event.table, event.engine)
        self._oldest_ms.pop(event.table, None)

    def _on_storage(self, event: events.StorageRequested) -> None:
        self._requests.labels(event.operation).inc(event.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDescription:
    """A metric as its documentation has it; `kind` is gauge, counter or histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


def metric_families() -> list[MetricDescription]:
    """Return every metric of ours, by name."""
    metrics = Metrics(SystemClock())
    metrics.watch_memory(0, lambda: 0)
    found = []
    # prometheus_client tells label names of samples only, and there are none yet.
    for collector in metrics._registry._collector_to_names:
        for family in collector.collect():
            names = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
            total = "_total" if family.type == "counter" else ""
            found.append(
                MetricDescription(
                    name=f"{family.name}{total}",
                    kind=family.type,
                    labels=tuple(str(name) for name in names or ()),
                    about=family.documentation,
                )
            )
    return sorted(
        (each for each in found if each.name.startswith("tailerd_")), key=lambda each: each.name
    )


class _BoardCollector(Collector):
    """Gives the figures that are worked out at each scrape."""

    def __init__(self, gauges: TableGauges, board: problems.ProblemBoard) -> None:
        self._gauges = gauges
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for family in self._gauges.families():
            gauge = GaugeMetricFamily(family.name, family.documentation, labels=family.labels)
            for labels, value in family.samples:
                gauge.add_metric(labels, value)
            yield gauge
        sizes = HistogramMetricFamily(
            "tailerd_table_file_size_bytes", "Sizes of live data files", labels=("table",)
        )
        for table in self._gauges.file_sizes():
            sizes.add_metric((table.table,), table.buckets, table.sum_bytes)
        yield sizes
        wrong = GaugeMetricFamily(
            "tailerd_daemon_problems",
            "Problems outside of tables, by job and error",
            labels=("job", "error_code"),
        )
        for labels, value in self._board.counts().items():
            wrong.add_metric(labels, value)
        yield wrong


def lag_seconds(oldest_timestamp_ms: int | None, now_ms: int) -> float:
    """Return how old the oldest undelivered version is: 0 when there is none, never negative."""
    if oldest_timestamp_ms is None:
        return 0.0
    return max(0.0, (now_ms - oldest_timestamp_ms) / 1000)
