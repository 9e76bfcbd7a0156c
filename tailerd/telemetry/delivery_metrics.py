"""Metrics of deliveries: commits, rows, bytes and how long they took."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from tailerd.telemetry import events
from tailerd.telemetry.pipeline_metrics import BUCKETS, PIPELINE


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
            "Commits delivered, rows or not, by how: cdc, vectors, rows, files, net, late or none",
            (*PIPELINE, "mode"),
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

    def _on_delivery(self, event: events.DeliveryAcknowledged) -> None:
        labels = (event.table, event.sink, event.engine)
        for change_type, rows in event.rows.items():
            self._rows.labels(*labels, change_type).inc(rows)
        self._bytes.labels(*labels).inc(event.bytes)
        self._delivery.labels(*labels).observe(event.duration_seconds)

    def _on_offset(self, event: events.OffsetSaved) -> None:
        self._commit.labels(event.table, event.engine).observe(event.duration_seconds)
