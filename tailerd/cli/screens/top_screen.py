"""`tailerd top`: the pipelines of a daemon, and the newest changes of the selected one."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Protocol
from urllib.parse import quote

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Header, Static

from tailerd.cli.change_table import printable
from tailerd.cli.screens.rows_table import RowsTable
from tailerd.cli.screens.shown_rows import show_daemon_commits, show_daemon_rows
from tailerd.cli.status import build_row, problem_lines, select_tables
from tailerd.errors import TailerdError

COLUMNS = ("table", "state", "lag", "lag time", "rows/s", "delivered", "head", "sink", "error")
STATE_STYLES = {"running": "green", "failed": "bold red", "retrying": "yellow", "paused": "cyan"}
HELD = frozenset({"paused", "failed", "stopped"})
_NO_ROWS = "rows need web.rows and the Arrow engine"
_RIGHT = frozenset({"lag", "rows/s", "delivered", "head"})


class Daemon(Protocol):
    """The requests of the screen; blocking. Errors are `TailerdError`."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    def status(self) -> dict[str, object]:
        """Return what `/status` shows."""
        ...

    def table(self, name: str) -> dict[str, object]:
        """Return what `/tables/NAME` shows."""
        ...

    def pause(self, name: str) -> dict[str, object]:
        """Pause a pipeline."""
        ...

    def resume(self, name: str) -> dict[str, object]:
        """Resume a pipeline."""
        ...


class TopScreen(App[None]):
    """Polls a daemon periodically, also while it restarts.

    Args:
        daemon: The daemon's client.
        interval_seconds: Between two requests.
    """

    CSS = """
    #pipelines { height: auto; max-height: 50%; min-height: 4; }
    #detail { height: auto; max-height: 6; padding: 0 1; background: $panel; }
    #heading { height: 1; padding: 0 1; }
    #rows { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("space", "pause", "Pause the screen", priority=True),
        Binding("tab", "focus_next", "Pipelines or changes"),
        Binding("p", "hold", "Pause or resume the pipeline"),
        Binding("o", "browse", "Open in the browser"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, daemon: Daemon, interval_seconds: float) -> None:
        super().__init__()
        self.title = f"tailerd top {daemon.url}"
        self._daemon = daemon
        self._interval_seconds = interval_seconds
        self._tables: list[dict[str, object]] = []
        self._chosen: str | None = None
        self._is_paused = False
        self._asked: tuple[str, str] | None = None
        self._pipelines = DataTable[Text](id="pipelines", cursor_type="row")
        self._detail = Static(id="detail")
        self._heading = Static(id="heading")
        self._rows = RowsTable(id="rows")

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Header()
        yield from (self._pipelines, self._detail, self._heading, self._rows)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to poll."""
        for name in COLUMNS:
            self._pipelines.add_column(name, key=name)
        self._pipelines.focus()
        self.run_worker(self._ask_for_ever(), exclusive=True)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the changes of the pipeline that the cursor is on."""
        if event.data_table.id == "pipelines" and event.row_key is not None:
            self._chosen, self._asked = event.row_key.value, None
            self.run_worker(self._refresh_rows(), group="rows", exclusive=True)

    def action_pause(self) -> None:
        """Pause or resume updates of the screen."""
        self._is_paused = not self._is_paused
        self.sub_title = "paused" if self._is_paused else ""

    def action_hold(self) -> None:
        """Pause or resume the chosen pipeline, when asked twice."""
        found = self._find_chosen()
        if found is None:
            return
        name = str(found.get("table"))
        verb = "resume" if found.get("state") in HELD else "pause"
        if self._asked != (name, verb):
            self._asked = name, verb
            self.notify(printable(f"Press p again to {verb} {name}."))
            return
        self._asked = None
        self.run_worker(self._hold(name, verb), group="hold")

    async def _hold(self, name: str, verb: str) -> None:
        change = self._daemon.resume if verb == "resume" else self._daemon.pause
        try:
            await asyncio.to_thread(change, name)
        except TailerdError as error:
            self.notify(printable(str(error)), severity="error", timeout=10)
        else:
            self.notify(printable(f"{name} {'resumed' if verb == 'resume' else 'is paused'}."))

    def action_browse(self) -> None:
        """Open the page of the chosen pipeline in a browser."""
        if self._chosen is not None:
            self.open_url(f"{self._daemon.url}/#/tables/{quote(self._chosen, safe='')}")

    def _find_chosen(self) -> dict[str, object] | None:
        return next((each for each in self._tables if each.get("table") == self._chosen), None)

    async def _ask_for_ever(self) -> None:
        while True:
            if not self._is_paused:
                await self._refresh()
            await asyncio.sleep(self._interval_seconds)

    async def _refresh(self) -> None:
        try:
            status = await asyncio.to_thread(self._daemon.status)
            self._tables = select_tables(status, self._daemon.url, None)
        except TailerdError as error:
            self._detail.update(Text(printable(str(error)), style="bold red"))
            return
        self._show_pipelines()
        problems = list(problem_lines(status))
        self._detail.update(
            Text("\n".join(problems), style="yellow") if problems else self._error()
        )
        await self._refresh_rows()

    def _show_pipelines(self) -> None:
        table = self._pipelines
        now = time.time()
        rows = {str(each.get("table")): build_row(each, now) for each in self._tables}
        for key in [key for key in table.rows if key.value not in rows]:
            table.remove_row(key)
        shown = {key.value for key in table.rows}
        for name, row in rows.items():
            cells = [_cell(column, row[column]) for column in COLUMNS]
            if name not in shown:
                table.add_row(*cells, key=name)
                continue
            for column, cell in zip(COLUMNS, cells, strict=True):
                if table.get_cell(name, column) != cell:
                    table.update_cell(name, column, cell, update_width=True)

    def _error(self) -> Text:
        found = self._find_chosen()
        error = None if found is None else found.get("last_error")
        if not isinstance(error, dict) or not error.get("is_current"):
            return Text("No error" if self._tables else "No pipelines")
        return Text(printable(f"{error.get('code')}: {error.get('message')}"), style="bold red")

    async def _refresh_rows(self) -> None:
        name = self._chosen
        if name is None:
            return
        try:
            table = await asyncio.to_thread(self._daemon.table, name)
        except TailerdError:
            # The next poll of all pipelines shows what is wrong.
            return
        rows = table.get("rows")
        if isinstance(rows, dict):
            self._heading.update(Text(f"Newest changes of {printable(name)}", style="bold"))
            self._rows.show(show_daemon_rows(rows.get("newest")))
        else:
            self._heading.update(Text(f"Newest commits of {printable(name)}; {_NO_ROWS}"))
            self._rows.show(show_daemon_commits(table.get("history")))


def _cell(column: str, value: object) -> Text:
    text = "-" if value is None else printable(str(value))
    style = STATE_STYLES.get(text.partition(" ")[0], "") if column == "state" else ""
    if column == "error" and value is not None:
        style = "red"
    return Text(text, style=style, justify="right" if column in _RIGHT else "left")
