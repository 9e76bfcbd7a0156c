"""Metrics of pipelines: their states, their lag, what their policies did."""

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
        self._state.labels(*labels).set(STATES["running"])
        self._head.labels(*labels).set(event.head_version)
        self._lag_versions.labels(*labels).set(event.versions)
        is_new = event.table not in self._oldest_ms
        self._oldest_ms[event.table] = event.oldest_timestamp_ms
        if is_new:
            # Computed at each scrape: the lag of a stuck pipeline grows without any event.
            self._lag_seconds.labels(*labels).set_function(lambda: self._lag_of(event.table))

    def _lag_of(self, table: str) -> float:
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
