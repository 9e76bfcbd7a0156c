"""Figures of tables that are computed on request: lag, headroom, size, growth.

Computed at each scrape, they are correct even without events: a lag grows, a day passes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from tailerd.clock import Clock
from tailerd.telemetry import events
from tailerd.telemetry.rates import DayGrowth, TableTotals

_KEYS = 1 << 64
_LOST = frozenset({"missing_version", "missing_data_file", "files_collected", "table_recreated"})
"""Codes of errors which mean that the next changes can no longer be read."""
_BUCKET_BITS = (16, 18, 20, 22, 24, 26, 27, 28, 29, 30, 32)
"""Upper bounds of the file sizes' histogram: 64 KiB to 4 GiB."""


@dataclass(slots=True)
class TableFigures:
    """The last events and figures of one table.

    Attributes:
        saved_ms: When an offset was last saved.
        snapshot_progress: Share of a snapshot that is delivered; None outside of one.
        retention_seconds: How long a commit and its files are kept at least; None if not known.
        is_lost: Whether the next version, or a file it needs, is gone already.
    """

    engine: str = ""
    backlog: events.BacklogMeasured | None = None
    size: events.TableMeasured | None = None
    growth: DayGrowth = field(default_factory=DayGrowth)
    saved_ms: int | None = None
    snapshot_progress: float | None = None
    retention_seconds: float | None = None
    is_lost: bool = False

    def lag_files(self) -> int | None:
        """Return the files of changes not yet delivered; None if not known."""
        return self._pending(None if self.size is None else self.size.pending_files)

    def lag_bytes(self) -> int | None:
        """Return the bytes of these files; None if not known."""
        return self._pending(None if self.size is None else self.size.pending_bytes)

    def _pending(self, pending: int | None) -> int | None:
        is_idle = self.backlog is not None and self.backlog.versions == 0
        return 0 if is_idle else pending

    def headroom_seconds(self, now_ms: int) -> float | None:
        """Return the time until the next commit may be cleaned up; negative if it may be now.

        For a table without a backlog this is its whole retention time.
        """
        if self.is_lost:
            return 0.0
        if self.backlog is None or self.retention_seconds is None:
            return None
        oldest_ms = self.backlog.oldest_timestamp_ms
        age_ms = 0 if oldest_ms is None else now_ms - oldest_ms
        return self.retention_seconds - age_ms / 1000


def snapshot_progress(offset: str) -> float | None:
    """Return the share of a snapshot before an offset, given as JSON text; None after the snapshot.

    Files are delivered in the order of their keys, which are spread evenly.
    """
    fields = json.loads(offset)
    return fields["position"] / _KEYS if fields["phase"] == "snapshot" else None


def size_json(
    size: events.TableMeasured, growth: TableTotals | None, watched_seconds: float | None = None
) -> dict[str, object]:
    """Return a table's size and growth as `/status` shows them."""
    return {
        "version": size.version,
        "files": size.files,
        "bytes": size.bytes,
        "rows": size.rows,
        "deletion_vectors": size.deletion_vectors,
        "deleted_rows": size.deleted_rows,
        "checkpoint_version": size.checkpoint_version,
        "commits_since_checkpoint": size.commits_since_checkpoint,
        "bytes_since_checkpoint": size.bytes_since_checkpoint,
        "log_files": size.log_files,
        "growth_per_day": None if growth is None else asdict(growth),
        "growth_watched_seconds": watched_seconds,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeFamily:
    """A metric with its samples: (label values, value)."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """The file sizes of a table: cumulative counts by upper bound, the last of them infinite."""

    table: str
    buckets: list[tuple[str, float]]
    sum_bytes: float


_Figure = Callable[[TableFigures, int], float | None]

_OF_PIPELINES: dict[str, tuple[str, _Figure]] = {
    "tailerd_lag_files": (
        "Files of changes not yet delivered",
        lambda t, _: t.lag_files(),
    ),
    "tailerd_lag_bytes": (
        "Bytes of the files of changes not yet delivered",
        lambda t, _: t.lag_bytes(),
    ),
    "tailerd_retention_headroom_seconds": (
        "Time until the next undelivered version, or a file it needs, may be cleaned up",
        lambda t, now_ms: t.headroom_seconds(now_ms),
    ),
    "tailerd_snapshot_progress_ratio": (
        "Share of a snapshot that is delivered, while one is",
        lambda t, _: t.snapshot_progress,
    ),
    "tailerd_last_progress_timestamp_seconds": (
        "When an offset was last saved",
        lambda t, _: None if t.saved_ms is None else t.saved_ms / 1000,
    ),
}

_OF_SIZES: dict[str, tuple[str, Callable[[events.TableMeasured], float | None]]] = {
    "tailerd_table_files": ("Live data files", lambda s: s.files),
    "tailerd_table_size_bytes": ("Bytes of live data files", lambda s: s.bytes),
    "tailerd_table_rows": (
        "Live rows; absent where statistics do not say",
        lambda s: s.rows,
    ),
    "tailerd_table_deletion_vectors": (
        "Live data files with a deletion vector",
        lambda s: s.deletion_vectors,
    ),
    "tailerd_table_deleted_rows": (
        "Rows that deletion vectors delete in live files",
        lambda s: s.deleted_rows,
    ),
    "tailerd_log_files": ("Files in the table's log", lambda s: s.log_files),
    "tailerd_log_commits_since_checkpoint": (
        "Commits after the newest checkpoint, or since the beginning",
        lambda s: s.commits_since_checkpoint,
    ),
    "tailerd_log_bytes_since_checkpoint": (
        "Bytes of these commits",
        lambda s: s.bytes_since_checkpoint,
    ),
}

_OF_DAYS: dict[str, tuple[str, Callable[[TableTotals], float | None]]] = {
    f"tailerd_table_growth_{noun}_per_day": (
        f"{noun.capitalize()} the table has grown by in the last 24 hours, as far as watched",
        figure,
    )
    for noun, figure in {
        "files": lambda g: g.files,
        "bytes": lambda g: g.bytes,
        "rows": lambda g: g.rows,
    }.items()
}

HANDLED = (
    events.BacklogMeasured,
    events.GrowthUnavailable,
    events.OffsetChosen,
    events.OffsetSaved,
    events.PipelineFailed,
    events.PipelinePaused,
    events.RetryScheduled,
    events.TableMeasured,
    events.TableRemoved,
)
"""The events that change a figure of a table."""


class TableGauges:
    """Builds figures from events. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[str, TableFigures] = {}

    def handle(self, event: events.Event) -> None:
        """Handle an event; those without figures of a table are ignored."""
        match event:
            case events.BacklogMeasured():
                figures = self._get_figures(event.table, event.engine)
                figures.backlog = event
                if event.retention_seconds is not None:
                    figures.retention_seconds = event.retention_seconds
            case events.OffsetChosen() | events.OffsetSaved():
                figures = self._get_figures(event.table, event.engine)
                figures.snapshot_progress = (
                    snapshot_progress(event.offset) if event.offset else None
                )
                figures.is_lost = False
                if isinstance(event, events.OffsetSaved):
                    figures.saved_ms = self._clock.now_ms()
            case events.TableMeasured():
                figures = self._get_figures(event.table, "")
                with self._lock:
                    figures.size = event
                    figures.retention_seconds = event.retention_seconds
                    totals = TableTotals(files=event.files, bytes=event.bytes, rows=event.rows)
                    figures.growth.add(totals, self._clock.now_ms())
            case events.PipelineFailed() | events.RetryScheduled():
                figures = self._get_figures(event.table, event.engine)
                figures.is_lost = event.error_code in _LOST
            case events.PipelinePaused():
                figures = self._get_figures(event.table, event.engine)
                if figures.backlog is not None and figures.backlog.versions == 0:
                    # The log is no longer polled: a lag of 0 may soon be wrong.
                    figures.backlog = None
            case events.GrowthUnavailable():
                self._get_figures(event.table, "").size = None
            case events.TableRemoved():
                with self._lock:
                    self._tables.pop(event.table, None)
            case _:
                pass

    def _get_figures(self, table: str, engine: str) -> TableFigures:
        with self._lock:
            figures = self._tables.setdefault(table, TableFigures())
            figures.engine = engine or figures.engine
            return figures

    def figures(self, table: str) -> TableFigures:
        """Return the figures of a table."""
        with self._lock:
            return self._tables.get(table) or TableFigures()

    def growth(self, table: str) -> TableTotals | None:
        """Return how much a table has grown in a day; None if its size is not known."""
        with self._lock:
            figures = self._tables.get(table)
            if figures is None or figures.size is None:
                return None
            return figures.growth.per_day(self._clock.now_ms())

    def watched_seconds(self, table: str) -> float | None:
        """Return the time that `growth` covers, a day at most; None if it is not known."""
        with self._lock:
            figures = self._tables.get(table)
            if figures is None or figures.size is None:
                return None
            return figures.growth.watched_ms(self._clock.now_ms()) / 1000

    def families(self) -> Iterator[GaugeFamily]:
        """Yield every metric, whether it has samples or not."""
        now_ms = self._clock.now_ms()
        with self._lock:
            tables = list(self._tables.items())
            sizes = [(name, each.size) for name, each in tables if each.size is not None]
            days = [(name, each.growth.per_day(now_ms)) for name, each in tables if each.size]
        for metric, (documentation, figure) in _OF_PIPELINES.items():
            yield GaugeFamily(
                name=metric,
                documentation=documentation,
                labels=("table", "engine"),
                samples=[
                    ((name, each.engine), value)
                    for name, each in tables
                    if (value := figure(each, now_ms)) is not None
                ],
            )
        for metric, (documentation, size_figure) in _OF_SIZES.items():
            values = [(name, size_figure(size)) for name, size in sizes]
            yield _by_table(metric, documentation, values)
        for metric, (documentation, day_figure) in _OF_DAYS.items():
            values = [(name, day_figure(growth)) for name, growth in days]
            yield _by_table(metric, documentation, values)

    def file_sizes(self) -> list[FileSizes]:
        """Return the file sizes of all tables that were measured."""
        with self._lock:
            sizes = [each.size for each in self._tables.values() if each.size is not None]
        return [
            FileSizes(
                table=size.table,
                buckets=[
                    *(
                        (str(float(1 << bits)), sum(size.size_counts[: bits + 1]))
                        for bits in _BUCKET_BITS
                    ),
                    ("+Inf", size.files),
                ],
                sum_bytes=size.bytes,
            )
            for size in sizes
        ]


def _by_table(
    metric: str, documentation: str, values: list[tuple[str, float | None]]
) -> GaugeFamily:
    samples: list[tuple[tuple[str, ...], float]] = [
        ((name,), value) for name, value in values if value is not None
    ]
    return GaugeFamily(name=metric, documentation=documentation, labels=("table",), samples=samples)
