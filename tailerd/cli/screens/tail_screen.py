"""`tailerd tail -i`: a table's changes on a screen, as they are committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Header, Static

from tailerd.cli.screens.rows_table import RowsTable
from tailerd.cli.screens.shown_rows import MAX_ROWS, ShownRow, show_batch
from tailerd.errors import TailerdError
from tailerd.pipeline.table_reading import ReadBatch

DRAW_SECONDS = 0.2


class TailScreen(App[TailerdError]):
    """Reads batches and shows their newest rows; ends with the error of reading.

    Args:
        location: Of the table.
        batches: Its rows, in order; read at the pace of the screen, and not while paused.
        columns: Only these, in this order; None for all.
    """

    CSS = "#rows { height: 1fr; } #status { height: 1; padding: 0 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("space", "pause", "Pause", priority=True),
        Binding("f", "follow", "Newest"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, location: str, batches: AsyncIterator[ReadBatch], columns: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.title = f"tailerd tail {location}"
        self._batches = batches
        self._columns = columns
        self._going = asyncio.Event()
        self._going.set()
        self._waiting: deque[ShownRow] = deque(maxlen=MAX_ROWS)
        self._count = 0
        self._version = ""
        self._is_over = False
        self._rows = RowsTable(id="rows")
        self._status_line = Static(id="status")

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Header()
        yield from (self._rows, self._status_line)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self._rows.focus()
        self.set_interval(DRAW_SECONDS, self._draw)
        self.run_worker(self._read(), exclusive=True)
        self._draw()

    def action_pause(self) -> None:
        """Pause or resume reading."""
        if self._going.is_set():
            self._going.clear()
        else:
            self._going.set()
        self._draw()

    def action_follow(self) -> None:
        """Go to the newest row."""
        self._rows.to_end()

    async def _read(self) -> None:
        try:
            async for batch in self._batches:
                await self._going.wait()
                rows = await asyncio.to_thread(show_batch, batch.rows, self._columns)
                self._waiting.extend(rows)
                self._count += batch.rows.num_rows
                self._version = str(batch.rows.version)
        except TailerdError as error:
            self.exit(error)
            return
        self._is_over = True
        self._draw()

    def _draw(self) -> None:
        if self._going.is_set() and self._waiting:
            rows = list(self._waiting)
            self._waiting.clear()
            self._rows.append(rows)
        parts = [f"{self._count:,} rows" if self._count else "No rows yet"]
        if self._version:
            parts.append(f"version {self._version}")
        if not self._going.is_set():
            parts.append("paused")
        if self._is_over:
            parts.append("nothing more is read")
        self._status_line.update(", ".join(parts))
