"""`GET /events`: streams changes to every open page.

Events only mark tables; at most once a second, the marked ones are serialized once for all pages. A
page that does not read is dropped: its queue is bounded, and it reconnects by itself when it can.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from tailerd.clock import Clock
from tailerd.telemetry import events
from tailerd.telemetry.history import HistoryBoard
from tailerd.telemetry.status import StatusBoard
from tailerd.web.answers import SharedBody, write_in_pieces

TICK_SECONDS = 0.1
"""How soon a change is sent after an idle time."""
SNAPSHOT_SECONDS = 1.0
"""Shortest time between two messages."""
BEAT_SECONDS = 5.0
"""Longest time between two messages, so that a page can show that its values are current."""
QUEUE_MESSAGES = 16
MAX_PAGES = 50
_BUFFER_BYTES = 64 * 1024
_LONGEST_ERROR = 400
_QUIET_SECONDS = 15.0
_END = b""
"""Not a message: wakes a stream whose page was dropped."""
_FORECAST_AFTER_SECONDS = 3600.0
_MONTH_SECONDS = 30 * 86_400


class _Page:
    """An open page: its queued messages, and its connection."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MESSAGES)
        self._transport = transport
        if transport is not None:
            # Unread messages wait in this bounded queue, not in a transport buffer.
            transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def drop(self) -> None:
        """Close the connection and end its stream at once; unread messages are lost."""
        if self._transport is not None:
            self._transport.abort()
        while not self.messages.empty():
            self.messages.get_nowait()
        self.messages.put_nowait(_END)


class LiveUpdates:
    """Sends open pages the current rows of the tables that changed.

    Messages are named `tables`: rows of the overview by name, null for a removed table, and the
    values of the daemon as a whole. The first has all tables, and their newest rates.
    """

    def __init__(
        self,
        status: StatusBoard,
        history: HistoryBoard,
        clock: Clock,
        month_bytes: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """Initialize; `month_bytes` returns a table's forecast from its log, if it gives one."""
        self._status = status
        self._history = history
        self._clock = clock
        self._month_bytes = month_bytes
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._moving: set[str] = set()
        self._engines: dict[str, int] = {}
        self._is_daemon_dirty = False
        self._pages: set[_Page] = set()
        self._has_page = asyncio.Event()
        self._opening = 0
        self._first = SharedBody(self._all)
        self._recent: deque[tuple[float, bytes]] = deque(maxlen=QUEUE_MESSAGES)

    @property
    def pages(self) -> int:
        """Number of open pages."""
        return len(self._pages)

    def mark(self, name: str) -> None:
        """Send a table's row again."""
        with self._lock:
            self._dirty.add(name)

    def handle(self, event: events.Event) -> None:
        """Mark the table of an event as changed."""
        name = getattr(event, "table", None)
        if name is not None:
            self.mark(name)
            return
        with self._lock:
            self._is_daemon_dirty = True
            if isinstance(event, events.EngineLaunched):
                self._engines[event.engine] = self._clock.now_ms()
            elif isinstance(event, events.EngineStarted):
                self._engines.pop(event.engine, None)

    async def run(self) -> None:
        """Serialize and send changes, until cancelled."""
        sent_at = moved_at = -math.inf
        while True:
            if not self._pages:
                self._has_page.clear()
                await self._has_page.wait()
            await self._clock.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            if now < sent_at + SNAPSHOT_SECONDS or not self._pages:
                continue
            is_moving = now >= moved_at + 2 * SNAPSHOT_SECONDS
            names = self._take(with_moving=is_moving)
            if names is not None or now >= sent_at + BEAT_SECONDS:
                sent_at, moved_at = now, now if is_moving else moved_at
                # In a thread: a thousand tables may have changed at once.
                self._hand_out(await asyncio.to_thread(self._rows, names or ()))

    def _take(self, *, with_moving: bool) -> set[str] | None:
        """Return the tables to send, None for no message; rates and lags change without events."""
        with self._lock:
            names, self._dirty = self._dirty, set()
            is_dirty, self._is_daemon_dirty = self._is_daemon_dirty, False
            found = names | self._moving if with_moving else names
            return found if found or is_dirty else None

    def end_pages(self) -> None:
        """Drop all pages: they would delay the end of the listener."""
        for page in list(self._pages):
            page.drop()

    def _hand_out(self, message: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._recent.append((now, message))
        for page in list(self._pages):
            try:
                page.messages.put_nowait(message)
            except asyncio.QueueFull:
                self._pages.discard(page)
                page.drop()

    def _rows(self, names: Iterable[str]) -> bytes:
        rows = {name: self.row(name) for name in names}
        self._note_moving(rows)
        return _message("tables", self._daemon() | {"tables": rows})

    def _note_moving(self, rows: Mapping[str, dict[str, object] | None]) -> None:
        with self._lock:
            for name, row in rows.items():
                is_moving = row is not None and (row["lag_seconds"] or row["rows_per_second"])
                (self._moving.add if is_moving else self._moving.discard)(name)

    def _daemon(self) -> dict[str, object]:
        with self._lock:
            engines = dict(self._engines)
        return {
            "at_ms": self._clock.now_ms(),
            "problems": self._status.problems_json(),
            "engines_starting": engines,
        }

    def row(self, name: str) -> dict[str, object] | None:
        """Return a table's row of the overview, with the fields of `/status`."""
        known = self._status.table_json(name)
        if known is None:
            return None
        found = known["size"]
        size = found if isinstance(found, dict) else {}
        error = known["last_error"]
        if isinstance(error, dict):
            error = {"code": error["code"], "message": error["message"][:_LONGEST_ERROR]}
        kept, logged = known["maintenance"], self._month_bytes(name)
        dead_letters = known["dead_letters"]
        return {key: known[key] for key in _SHOWN} | {
            "last_error": error,
            "commits_since_checkpoint": size.get("commits_since_checkpoint"),
            "bytes_since_checkpoint": size.get("bytes_since_checkpoint"),
            "bytes": size.get("bytes"),
            "forecast_bytes": _forecast(size) if logged is None else logged,
            "dead_letters": sum(dead_letters.values()) if isinstance(dead_letters, dict) else 0,
            "is_maintained": kept is not None,
            "due": len(kept["due"]) if isinstance(kept, dict) else 0,
        }

    def _all(self) -> bytes:
        names = [table.table for table in self._status.tables]
        rows = {name: self.row(name) for name in names}
        self._note_moving(rows)
        rates = {name: found for name in names if (found := self._history.spark(name))}
        first = {"is_all": True, "tables": rows, "rates": rates}
        return _message("tables", self._daemon() | first)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer with messages until the page disconnects, or does not read."""
        if len(self._pages) + self._opening >= MAX_PAGES:
            return web.json_response(
                {
                    "error": {
                        "code": "too_many_pages",
                        "message": f"{MAX_PAGES} pages are open already. Close one.",
                    }
                },
                status=503,
            )
        answer = web.StreamResponse(headers={"Cache-Control": "no-store"})
        answer.content_type = "text/event-stream"
        page = _Page(request.transport)
        try:
            with suppress(ConnectionError, TimeoutError):
                await answer.prepare(request)
                await self._send_all(answer, page, await self._open(page))
        finally:
            self._pages.discard(page)
            # The stream is endless: the page has disconnected, or does not read.
            page.drop()
        return answer

    async def _open(self, page: _Page) -> bytes:
        """Subscribe a page to messages; return its first one."""
        self._opening += 1
        try:
            first = await self._first.get()
        finally:
            self._opening -= 1
        # Messages sent since the first one was serialized follow it.
        for sent_at, message in self._recent:
            if sent_at >= first.began:
                page.messages.put_nowait(message)
        self._pages.add(page)
        self._has_page.set()
        return first.body

    async def _send_all(self, answer: web.StreamResponse, page: _Page, message: bytes) -> None:
        while message != _END:
            await write_in_pieces(answer.write, message)
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    message = await page.messages.get()
            except TimeoutError:
                # A comment: it shows that the other side is still there.
                message = b": quiet\n\n"


_SHOWN = (
    "state",
    "activity",
    "format",
    "engine",
    "sink",
    "delivered_version",
    "head_version",
    "lag_versions",
    "lag_seconds",
    "rows_per_second",
    "rows_per_second_by_change",
    "next_retry_ms",
    "attempt",
    "gaps",
    "skipped_commits",
    "snapshot_progress",
)


def _message(name: str, body: dict[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def _forecast(size: Mapping[str, Any]) -> int | None:
    """Return the growth in 30 days as watched, where the log shows none; None in the first hour."""
    growth, watched = size.get("growth_per_day"), size.get("growth_watched_seconds")
    if not growth or not watched or watched < _FORECAST_AFTER_SECONDS:
        return None
    return int(growth["bytes"] / watched * _MONTH_SECONDS)
