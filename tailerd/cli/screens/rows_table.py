"""A table on a screen to which change rows are added, the newest at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rich.text import Text
from textual.widgets import DataTable

from tailerd.cli.change_table import CHANGE_STYLES, HEADINGS, printable
from tailerd.cli.screens.shown_rows import MAX_ROWS, ShownRow

CHANGED_STYLE = "bold black on yellow"


class RowsTable(DataTable[Text]):
    """Keeps the newest `MAX_ROWS` rows; follows them while its cursor is on the last one."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._shown_rows: deque[ShownRow] = deque(maxlen=MAX_ROWS)
        self._names: list[str] = []

    def append(self, rows: Iterable[ShownRow]) -> None:
        """Add rows after the present ones."""
        new = list(rows)
        if not new:
            return
        is_at_end = self.row_count == 0 or self.cursor_row >= self.row_count - 1
        self._shown_rows.extend(new)
        names = list(self._names)
        known = set(names)
        for row in new:
            names += [name for name in row.cells if name not in known]
            known.update(row.cells)
        # Dropping rows one by one costs more than drawing those that are kept.
        if names != self._names or self.row_count + len(new) > 2 * MAX_ROWS:
            self._draw(names)
        else:
            self._add(new)
        if is_at_end:
            self.to_end()

    def show(self, rows: Iterable[ShownRow]) -> None:
        """Show these rows and no others."""
        new = list(rows)
        if new == list(self._shown_rows):
            return
        self._shown_rows.clear()
        self._names = []
        self.clear(columns=True)
        self.append(new)

    def to_end(self) -> None:
        """Go to the newest row, and follow those that come."""
        if self.row_count:
            self.move_cursor(row=self.row_count - 1, animate=False)

    def _draw(self, names: list[str]) -> None:
        self._names = names
        self.clear(columns=True)
        # The time comes last: a narrow screen shows the table's own columns.
        for heading in (*HEADINGS[:2], *map(printable, names), HEADINGS[2]):
            self.add_column(Text(heading))
        self._add(self._shown_rows)

    def _add(self, rows: Iterable[ShownRow]) -> None:
        self.add_rows(self._cells(row) for row in rows)

    def _cells(self, row: ShownRow) -> list[Text]:
        style = CHANGE_STYLES.get(row.change, "")
        cells = [Text(row.change, style=style), Text(row.version, justify="right")]
        for name in self._names:
            is_changed = name in row.changed
            cells.append(Text(row.cells.get(name, ""), style=CHANGED_STYLE if is_changed else ""))
        return [*cells, Text(row.time)]
