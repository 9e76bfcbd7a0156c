"""Progress of `run` and `demo` on a terminal: the start of Spark, and how far `--once` is.

The line is below the log and is redrawn after its lines. Without a terminal only the log shows it.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self, TextIO

from tailerd.cli.progress import Progress
from tailerd.telemetry import Handler, events
from tailerd.telemetry.table_gauges import snapshot_progress


class RunProgress:
    """Handles events as a log does; shows progress while inside. Thread-safe.

    Args:
        log: Writes the event's line.
        is_counting: Whether rows and the delivered share are shown, as for `--once`.
        stream: Standard error by default.
    """

    def __init__(self, log: Handler, *, is_counting: bool, stream: TextIO | None = None) -> None:
        self._log = log
        self._is_counting = is_counting
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._lock = threading.RLock()
        self._shown: Progress | None = None
        self._rows = 0
        self._versions: dict[str, int] = {}
        self._shares: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._count()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._show(None)

    def handle(self, event: events.Event) -> None:
        """Handle an event and pass it to the log."""
        if not self._is_terminal:
            self._log(event)
            return
        with self._lock:
            match event:
                case events.EngineLaunched(engine=engine):
                    self._show(Progress(f"Starting {engine.capitalize()}", stream=self._stream))
                case events.EngineStarted():
                    self._count()
                case _:
                    self._note(event)
            if self._shown is None:
                self._log(event)
            else:
                self._shown.above(lambda: self._log(event))

    def _count(self) -> None:
        requested = self._is_counting and self._is_terminal
        self._show(Progress("Delivering", "rows", stream=self._stream) if requested else None)

    def _show(self, progress: Progress | None) -> None:
        with self._lock:
            former, self._shown = self._shown, progress
            if former is not None:
                former.__exit__(None, None, None)
            if progress is not None:
                progress.__enter__()

    def _note(self, event: events.Event) -> None:
        match event:
            case events.PipelineStarted(table=table):
                self._shares[table] = 0.0
            case events.BacklogMeasured(table=table, versions=versions):
                most = self._versions.setdefault(table, versions)
                self._shares[table] = 1 - versions / most if most else 1.0
            case events.OffsetSaved(table=table, offset=offset) if offset:
                share = snapshot_progress(offset)
                if share is not None:
                    self._shares[table] = share
            case events.DeliveryAcknowledged(rows=rows):
                self._rows += sum(rows.values())
            case _:
                return
        if self._shown is not None and self._is_counting:
            share = sum(self._shares.values()) / len(self._shares) if self._shares else None
            self._shown.report(self._rows, share)
