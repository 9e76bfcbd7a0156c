"""Passes Spark's reports about queries to the supervisor of each query."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from tailerd.spark.progress import OBSERVED, BatchReport


class QueryObserver(Protocol):
    """Receives Spark's reports about one query; called from Spark's callback thread."""

    def on_progress(self, report: BatchReport) -> None:
        """Handle a micro-batch."""
        ...

    def on_idle(self) -> None:
        """Note that the query found nothing new."""
        ...

    def on_end(self) -> None:
        """Note that the query ended, for any reason."""
        ...


class QueryListener(StreamingQueryListener):
    """One listener for all queries of a session; observers are registered by run id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observers: Mapping[str, QueryObserver] = {}
        self._early: dict[str, list[StreamingQueryProgress | None]] = {}

    def observe(self, run_id: str, observer: QueryObserver) -> None:
        """Notify `observer` of this run from now on."""
        with self._lock:
            self._observers = {**self._observers, run_id: observer}
            early = self._early.pop(run_id, [])
        for progress in early:
            _notify(observer, progress)

    def forget(self, run_id: str) -> None:
        """Stop the notifications about this run."""
        with self._lock:
            self._observers = {k: v for k, v in self._observers.items() if k != run_id}
            self._early.pop(run_id, None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Remember the run: its first report may come before its supervisor knows its id."""
        with self._lock:
            self._early.setdefault(str(event.runId), [])

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Pass a report on."""
        self._pass_on(str(event.progress.runId), event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Pass on that nothing was new."""
        self._pass_on(str(event.runId), None)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Pass on the end."""
        with self._lock:
            observer = self._observers.get(str(event.runId))
            self._early.pop(str(event.runId), None)
        if observer is not None:
            observer.on_end()

    def _pass_on(self, run_id: str, progress: StreamingQueryProgress | None) -> None:
        with self._lock:
            observer = self._observers.get(run_id)
            if observer is None and run_id in self._early:
                self._early[run_id].append(progress)
        if observer is not None:
            _notify(observer, progress)


def _notify(observer: QueryObserver, progress: StreamingQueryProgress | None) -> None:
    if progress is None:
        observer.on_idle()
    else:
        observer.on_progress(_report(progress))


def _report(progress: StreamingQueryProgress) -> BatchReport:
    source = progress.sources[0]
    observed = progress.observedMetrics.get(OBSERVED)
    return BatchReport(
        start=source.startOffset or "",
        end=source.endOffset or "",
        head=source.latestOffset or "",
        observed={} if observed is None else observed.asDict(),
        duration_seconds=progress.batchDuration / 1000,
    )
