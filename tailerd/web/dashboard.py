"""The page at `/`: its files, its data, and the tasks that keep the data up to date.

It shows the values of `/status`, and the history from `HistoryBoard`. The files have no build step
and need no other server; they hold no data, so every client of the listener may load them.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import resources

from aiohttp import web

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock
from tailerd.formats.growth import TableSize
from tailerd.pipeline.newest_rows import NewestRows
from tailerd.pipeline_names import table_of
from tailerd.registry import suggest_name
from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.bus import Handlers
from tailerd.telemetry.history import HistoryBoard, HistorySaver, HistoryStore
from tailerd.telemetry.status import StatusBoard
from tailerd.web import docs_pages
from tailerd.web.answers import SharedBody, refusal, send_body
from tailerd.web.daemon_page import DaemonRoutes
from tailerd.web.explorer import ExplorerRoutes
from tailerd.web.forecasts import Forecasts
from tailerd.web.live import LiveUpdates

_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_SAVE_SECONDS = 5.0
_MAX_TABLES = 64
"""Number of viewed tables whose last answer is kept."""
_MAX_SECONDS = 31 * 86_400
_JSON = {"Content-Type": "application/json; charset=utf-8"}


def page_files() -> dict[str, bytes]:
    """Return the files of the page by their names."""
    folder = resources.files("tailerd.web") / "page"
    return {
        item.name: item.read_bytes()
        for item in folder.iterdir()
        if item.name.rpartition(".")[2] in _TYPES
    }


class Dashboard:
    """Handles every event and serves the page.

    Attributes:
        telemetry: Gets its own events, such as a failed save; set by the owner.
        rows: The newest rows of the tables; None if rows are not shown.
        explorer, daemon: Further routes; the owner sets their configuration.
    """

    def __init__(
        self,
        status: StatusBoard,
        store: HistoryStore,
        *,
        clock: Clock,
        maintain: Callable[[str], bool],
    ) -> None:
        """Initialize.

        Args:
            status: What `/status` shows.
            store: Keeps the history over restarts.
            clock: As everywhere.
            maintain: Requests maintenance of a table now; returns False if it is not maintained.
        """
        self.telemetry = Telemetry()
        self.rows: NewestRows | None = None
        self._status = status
        self._maintain = maintain
        self._history = HistoryBoard(clock)
        self.explorer = ExplorerRoutes(self._refuse_unknown, self._size)
        self._forecasts = Forecasts(
            measured=lambda: [t.table for t in status.tables if self._size(t.table) is not None],
            read=self.explorer.read_growth,
            is_viewed=lambda: self._live.pages > 0 and self.explorer.explorer is not None,
            on_change=lambda name: self._live.mark(name),
            clock=clock,
        )
        self._live = LiveUpdates(status, self._history, clock, self._forecasts.month_bytes)
        self.daemon = DaemonRoutes(
            status,
            self._history,
            clock=clock,
            pages=lambda: self._live.pages,
            unknown=self._refuse_unknown,
        )
        self._history_saver = HistorySaver(
            self._history,
            store,
            status=status,
            clock=clock,
            objectives=self.daemon.objectives,
            on_unsaved=self._emit_unsaved,
        )
        self._tables: OrderedDict[str, SharedBody] = OrderedDict()
        self._files = page_files()
        self._tags = {name: f'"{sha256(body).hexdigest()}"' for name, body in self._files.items()}

    def freshness(self) -> dict[str, dict[str, float]]:
        """Return the freshness of the tables with an objective, by name."""
        objectives = self.daemon.objectives()
        return {name: self._history.freshness(name, each) for name, each in objectives.items()}

    def _emit_unsaved(self, path: str, reason: str) -> None:
        self.telemetry.emit(events.HistoryUnsaved(path=path, reason=reason))

    def handlers(self) -> list[Handlers]:
        """Return handlers of events, for any thread; `status` must have handled them before."""
        boards = self._history.handle, self._live.handle
        return [
            *(dict.fromkeys(events.SHOWN, each) for each in boards),
            self.daemon.alerts.handlers(),
            {events.TableRemoved: self._forget},
        ]

    def _forget(self, event: events.TableRemoved) -> None:
        self._forecasts.forget(event.table)
        if self.rows is not None:
            self.rows.forget(event.table)

    async def run(self) -> None:
        """Keep pages and history up to date until cancelled; then close the pages."""
        try:
            await asyncio.to_thread(self._history_saver.restore)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._history_saver.run())
                group.create_task(self._live.run())
                group.create_task(self._forecasts.run())
                group.create_task(self.daemon.run())
        finally:
            self._live.end_pages()

    async def close(self) -> None:
        """Save the history a last time; a storage that hangs does not block the process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAVE_SECONDS):
                await asyncio.to_thread(self._history_saver.save, is_all=True)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the page."""
        return [
            web.get("/", self.page),
            web.get("/static/{name}", self.file),
            web.get("/events", self._live.stream),
            web.get("/series", self.series),
            web.get("/tables/{name}", self.table),
            web.get("/tables/{name}/series", self.series),
            web.post("/pipelines/{name}/maintain", self.maintain),
            *self.explorer.routes(),
            *self.daemon.routes(),
            *docs_pages.routes(),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """Show the page."""
        return self._answer(request, "index.html")

    async def file(self, request: web.Request) -> web.Response:
        """Serve one of the page's files."""
        return self._answer(request, request.match_info["name"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        body = self._files.get(name)
        if body is None:
            return refusal(404, "not_found", "The page has no such file.")
        # Another release has other files, so a browser revalidates them.
        headers = {"ETag": self._tags[name], "Cache-Control": "no-cache"}
        if self._tags[name] in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        kind = _TYPES[name.rpartition(".")[2]]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def table(self, request: web.Request) -> web.StreamResponse:
        """Show all of one table, at most a second old: its status and its history."""
        name = request.match_info["name"]
        if (refused := self._refuse_unknown(name)) is not None:
            return refused
        found = await self._share_table(name).get()
        return await send_body(request, found.body, _JSON)

    def _share_table(self, name: str) -> SharedBody:
        """Return the serialized table that all of its viewers share."""
        known = self._tables.pop(name, None) or SharedBody(partial(self._table_text, name))
        self._tables[name] = known
        if len(self._tables) > _MAX_TABLES:
            self._tables.popitem(last=False)
        return known

    def expire(self) -> None:
        """Discard cached answers: an operator made a change."""
        for body in self._tables.values():
            body.expire()

    def _table_text(self, name: str) -> bytes:
        shown = self._status.table_json(name) or {}
        shown |= {
            "history": self._history.to_json(name),
            # Files by size: entry n counts sizes above 2**(n-1) and up to 2**n bytes.
            "file_sizes": list(self._status.file_sizes(name)),
            "rows": None,
            "rows_shown": self.explorer.is_showing_rows,
            "key_columns": self.daemon.key_columns(name),
            "freshness": None,
        }
        if (objective := self.daemon.objective(name)) is not None:
            shown["freshness"] = self._history.freshness(name, objective)
        if self.rows is not None and shown.get("engine") == "arrow":
            shown["rows"] = {
                "newest": self.rows.list_rows(name),
                "masked": self.rows.list_masked(name),
            }
        return json.dumps(shown).encode()

    async def series(self, request: web.Request) -> web.StreamResponse:
        """Show figures over the last `seconds`, of a table or of all together."""
        name = request.match_info.get("name")
        if name is not None and (refused := self._refuse_unknown(name)) is not None:
            return refused
        text = request.query.get("seconds", "900")
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_SECONDS:
            return refusal(400, "usage", f"`seconds` must be a number from 1 to {_MAX_SECONDS}.")
        body = await asyncio.to_thread(self._series_text, name, int(text))
        return await send_body(request, body, _JSON)

    def _series_text(self, name: str | None, seconds: int) -> bytes:
        return json.dumps(self._history.series(name, seconds), separators=(",", ":")).encode()

    async def maintain(self, request: web.Request) -> web.Response:
        """Request maintenance of a table's log now; answered before it is done."""
        name = request.match_info["name"]
        if (refused := self._refuse_unknown(name)) is not None:
            return refused
        if not self._maintain(table_of(name)):
            return refusal(
                409,
                "not_maintained",
                f"The log of {name} is not maintained by this daemon. Give"
                f" tables.{table_of(name)} a section"
                f" `maintenance`, or run `tailerd maintain` on it.",
            )
        return web.json_response({"table": name, "asked": True}, status=202)

    def _size(self, name: str) -> TableSize | None:
        size = self._status.gauges.figures(name).size
        if size is None:
            return None
        return TableSize(
            version=Version(size.version),
            size_bytes=size.bytes,
            num_files=size.files,
            num_rows=size.rows,
        )

    def _refuse_unknown(self, name: str) -> web.Response | None:
        """Return a refusal for an unknown table; None for a known one."""
        if self._status.table_json(name) is not None:
            return None
        remedy = suggest_name(name, [table.table for table in self._status.tables])
        return refusal(404, "unknown_table", f"There is no table {name[:300]!r}. {remedy}".strip())
