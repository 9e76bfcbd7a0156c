"""Progress of long work on standard error: percent, rate and time left.

On a terminal one line that is redrawn, starting after a second; elsewhere a line every half minute.
Standard output carries data only.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from tailerd.cli.quantities import duration_text, size_text

SILENT_SECONDS = 2.0
_TERMINAL_SECONDS = 0.5
_PIPE_SECONDS = 30.0
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Shows the progress of work while inside. Thread-safe.

    Args:
        what: The activity, such as `Reading orders`.
        unit: What is counted; `bytes` are shown with their units, empty: nothing is counted.
        stream: Standard error by default.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        what: str,
        unit: str = "",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._clock = clock
        self._began = clock()
        self._done = 0.0
        self._share: float | None = None
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._is_drawn = False
        self._thread = threading.Thread(target=self._redraw, daemon=True, name="progress")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._is_drawn and self._is_terminal:
            self._write(_CLEAR_LINE)

    def report(self, done: float, share: float | None = None) -> None:
        """Note how much is done.

        Args:
            done: In units, since the start.
            share: From 0 to 1; None if the total is not known.
        """
        self._done = done
        self._share = None if share is None else min(1.0, max(0.0, share))

    def above(self, write: Callable[[], None]) -> None:
        """Write other lines to the same stream: the progress line is cleared and redrawn."""
        with self._writing:
            if self._is_drawn and self._is_terminal:
                self._write(_CLEAR_LINE)
            write()

    def text(self) -> str:
        """Return the current line, without control characters for the cursor."""
        seconds = self._clock() - self._began
        parts = [self._what]
        if self._share is not None:
            parts.append(f"{self._share:.0%}")
        if self._unit and self._done:
            parts.append(self._amount(self._done))
            parts.append(f"{self._amount(self._done / max(seconds, 0.001))}/s")
        parts.append(duration_text(seconds))
        if self._share:
            parts.append(f"ETA {duration_text(seconds * (1 - self._share) / self._share)}")
        return ", ".join(parts)

    def _amount(self, number: float) -> str:
        return size_text(number) if self._unit == "bytes" else f"{number:,.0f} {self._unit}"

    def _redraw(self) -> None:
        wait = SILENT_SECONDS if self._is_terminal else _PIPE_SECONDS
        while not self._over.wait(wait):
            end = "" if self._is_terminal else "\n"
            start = _CLEAR_LINE if self._is_terminal else ""
            with self._writing:
                self._write(f"{start}{self.text()}{end}")
                self._is_drawn = True
            wait = _TERMINAL_SECONDS if self._is_terminal else _PIPE_SECONDS

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The reader has closed the stream: the work continues.
            self._over.set()
