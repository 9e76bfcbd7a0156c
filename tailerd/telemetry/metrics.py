"""Prometheus metrics, derived from events; each `*_metrics.py` has those of one subject."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tailerd.clock import Clock, SystemClock
from tailerd.telemetry import events, problems, table_gauges
from tailerd.telemetry.bus import Handlers
from tailerd.telemetry.pipeline_metrics import (
    DeliveryMetrics,
    MaintenanceMetrics,
    PipelineMetrics,
    PolicyMetrics,
)
from tailerd.telemetry.status import StatusBoard
from tailerd.telemetry.table_gauges import TableGauges

CONTENT_TYPE = CONTENT_TYPE_LATEST

LABELS = frozenset(
    {"table", "source", "sink", "engine", "job", "error_code", "op", "mode", "result"}
)
"""All label names in use; `op` is `_change_type` of rows or the verb of a storage request, `mode`
how a commit was read, `result` the result of a maintenance job."""


class Metrics:
    """Stores the process's metrics in a separate registry."""

    def __init__(self, clock: Clock, status: StatusBoard | None = None) -> None:
        """Initialize.

        Args:
            status: Handles the events of figures that are computed at each scrape; by default this
                object does.
        """
        self._registry = registry = CollectorRegistry()
        own = StatusBoard([], clock) if status is None else status
        self._gauges, self._problems = own.gauges, own.problems
        self._errors = Counter(
            "tailerd_errors_total",
            "Errors, retried ones too",
            ("table", "error_code"),
            registry=registry,
        )
        self._requests = Counter(
            "tailerd_storage_requests_total",
            "Requests to storage, by verb",
            ("op",),
            registry=registry,
        )
        parts = (
            PipelineMetrics(registry, self._errors, clock),
            PolicyMetrics(registry),
            DeliveryMetrics(registry),
            MaintenanceMetrics(registry, self._errors),
        )
        self._handlers: dict[type, list[Callable[..., None]]] = defaultdict(list)
        tables: list[Mapping[type, Callable[..., None]]] = [each.handlers() for each in parts]
        tables.append(
            {
                events.GrowthUnavailable: self._on_growth_unavailable,
                events.StorageRequested: self._on_storage,
            }
        )
        if status is None:
            tables.append(dict.fromkeys(problems.HANDLED, self._problems.handle))
            tables.append(dict.fromkeys(table_gauges.HANDLED, self._gauges.handle))
        for table in tables:
            for event, handler in table.items():
                self._handlers[event].append(handler)
        self._register_collectors()

    def handlers(self) -> Handlers:
        """Return the handler of each event that changes a metric."""
        return dict.fromkeys(self._handlers, self.handle)

    def handle(self, event: events.Event) -> None:
        """Count an event; those without a metric are ignored."""
        for handler in self._handlers.get(type(event), ()):
            handler(event)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def watch_memory(self, budget_bytes: int, used_bytes: Callable[[], int]) -> None:
        """Export the bytes that are read ahead of the sinks; each scrape calls `used_bytes`."""
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

    def watch_freshness(self, days: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        """Export the freshness of tables with an objective, as `FreshnessDays.describe`, by name.

        Each scrape calls `days`.
        """
        self._registry.register(_FreshnessCollector(days))

    def _register_collectors(self) -> None:
        self._registry.register(_BoardCollector(self._gauges, self._problems))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def _on_growth_unavailable(self, event: events.GrowthUnavailable) -> None:
        self._errors.labels(event.table, event.error_code).inc()

    def _on_storage(self, event: events.StorageRequested) -> None:
        self._requests.labels(event.operation).inc(event.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDescription:
    """A metric as in its documentation; `kind` is gauge, counter or histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


def metric_families() -> list[MetricDescription]:
    """Return every metric of tailerd, by name."""
    metrics = Metrics(SystemClock())
    metrics.watch_memory(0, lambda: 0)
    metrics.watch_freshness(dict)
    found = []
    # prometheus_client reports label names of samples only, and there are none yet.
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


class _FreshnessCollector(Collector):
    """Collects the times in which tables were late, and their error budgets."""

    _ABOUT: ClassVar = {
        "known": "Time of the last 30 days in which the lag was known",
        "late": "Time of the last 30 days in which the lag was above the table's objective",
        "budget_left": "Time that the table may still be late within 30 days; below 0: too late",
    }

    def __init__(self, days: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        self._days = days

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        tables = self._days()
        for noun, about in self._ABOUT.items():
            gauge = GaugeMetricFamily(f"tailerd_freshness_{noun}_seconds", about, labels=("table",))
            for table, found in tables.items():
                gauge.add_metric((table,), found[f"{noun}_seconds"])
            yield gauge


class _BoardCollector(Collector):
    """Collects the figures that are computed at each scrape."""

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
