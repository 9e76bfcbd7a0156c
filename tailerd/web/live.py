"""`GET /events`: what changes, as it changes, to every open page.

Events only mark tables; twice a second at most, the marked ones are written down once for all
pages. A page that does not read is dropped: it holds no more than a few messages, and comes back by
itself when it can.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from aiohttp import web

from tailerd.clock import Clock
from tailerd.telemetry import events
from tailerd.telemetry.history import HistoryBoard
from tailerd.telemetry.history_store import SAMPLE_SECONDS
from tailerd.telemetry.status import StatusBoard
from tailerd.web.large_answers import SharedBody, write_in_pieces

TICK_SECONDS = 0.5
QUEUE_MESSAGES = 16
MOST_PAGES = 50
_BUFFER_BYTES = 64 * 1024
_LONGEST_ERROR = 400
_QUIET_SECONDS = 15.0


class _Page:
    """An open page: what waits for it, and the connection it has."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MESSAGES)
        self._transport = transport
        if transport is not None:
            # What a page does not read waits in our queue, which is bounded, not in a buffer.
            transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def drop(self) -> None:
        """End the connection at once, with what was not read."""
        if self._transport is not None:
            self._transport.abort()


class LiveUpdates:
    """Tells open pages which tables changed, and how they stand now.

    Messages are named `tables` (rows of the overview by name, null for one that is gone) and `lags`
    (one more point of every sparkline). The first `tables` message has all of them and their
    sparklines.
    """

    def __init__(self, status: StatusBoard, history: HistoryBoard, clock: Clock) -> None:
        self._status = status
        self._history = history
        self._clock = clock
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._moving: set[str] = set()
        self._pages: set[_Page] = set()
        self._opening = 0
        self._first = SharedBody(self._all)
        self._recent: deque[tuple[float, bytes]] = deque(maxlen=QUEUE_MESSAGES)

    @property
    def pages(self) -> int:
        """Number of open pages."""
        return len(self._pages)

    def handle(self, event: events.Event) -> None:
        """Mark the table an event is about."""
        name = getattr(event, "table", None)
        if name is not None:
            with self._lock:
                self._dirty.add(name)

    async def run(self) -> None:
        """Write down and hand out what changes, until cancelled."""
        ticks = 0
        per_sample = round(SAMPLE_SECONDS / TICK_SECONDS)
        while True:
            await self._clock.sleep(TICK_SECONDS)
            ticks += 1
            names = self._take(with_moving=ticks % 4 == 0)
            # In a thread: a thousand tables may have changed at once.
            if names:
                self._hand_out(await asyncio.to_thread(self._rows, names))
            if ticks % per_sample == 0:
                self._hand_out(await asyncio.to_thread(self._lags))

    def _take(self, *, with_moving: bool) -> set[str]:
        """Return what to tell; rates and lags move although nothing happens."""
        with self._lock:
            names, self._dirty = self._dirty, set()
            return names | self._moving if with_moving else names

    def end_pages(self) -> None:
        """Drop all pages: they would hold up the end of the listener."""
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
        with self._lock:
            for name, row in rows.items():
                is_moving = row is not None and (row["lag_seconds"] or row["rows_per_second"])
                (self._moving.add if is_moving else self._moving.discard)(name)
        return _message("tables", {"at_ms": self._clock.now_ms(), "tables": rows})

    def row(self, name: str) -> dict[str, object] | None:
        """Return a table's row of the overview, of the words and figures of `/status`."""
        known = self._status.table_json(name)
        if known is None:
            return None
        size = known["size"]
        debt = size if isinstance(size, dict) else {}
        error = known["last_error"]
        if isinstance(error, dict):
            error = {"code": error["code"], "message": error["message"][:_LONGEST_ERROR]}
        shown = {key: known[key] for key in _SHOWN}
        return shown | {
            "last_error": error,
            "commits_since_checkpoint": debt.get("commits_since_checkpoint"),
            "bytes_since_checkpoint": debt.get("bytes_since_checkpoint"),
            "is_maintained": known["maintenance"] is not None,
        }

    def _all(self) -> bytes:
        names = [table.table for table in self._status.tables]
        first = {name: self.row(name) for name in names}
        lags = {name: _rounded(self._history.lags(name)) for name in names}
        return _message(
            "tables",
            {
                "at_ms": self._clock.now_ms(),
                "is_all": True,
                "problems": self._status.problems_json(),
                "sample_seconds": SAMPLE_SECONDS,
                "tables": first,
                "lags": lags,
            },
        )

    def _lags(self) -> bytes:
        now_ms = self._clock.now_ms()
        # Most have none: they are left out.
        lags = {
            table.table: seconds if seconds is None else round(seconds, 1)
            for table in self._status.tables
            if (seconds := table.lag_seconds(now_ms)) != 0
        }
        problems = self._status.problems_json()
        return _message("lags", {"at_ms": now_ms, "lags": lags, "problems": problems})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer with messages until the page goes, or does not read."""
        if len(self._pages) + self._opening >= MOST_PAGES:
            return web.json_response(
                {
                    "error": {
                        "code": "too_many_pages",
                        "message": f"{MOST_PAGES} pages are open already. Close one.",
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
            # There is no good end of a stream without end: the page went, or does not read.
            page.drop()
        return answer

    async def _open(self, page: _Page) -> bytes:
        """Let a page be told of what happens; return the message that it begins with."""
        self._opening += 1
        try:
            first = await self._first.get()
        finally:
            self._opening -= 1
        # What was told since that was written down comes after it.
        for told_at, message in self._recent:
            if told_at >= first.began:
                page.messages.put_nowait(message)
        self._pages.add(page)
        return first.body

    async def _send_all(self, answer: web.StreamResponse, page: _Page, message: bytes) -> None:
        while True:
            await write_in_pieces(answer.write, message)
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    message = await page.messages.get()
            except TimeoutError:
                # A comment: it shows that the other side is still there.
                message = b": quiet\n\n"


_SHOWN = (
    "state",
    "engine",
    "source",
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
)


def _message(name: str, body: dict[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def _rounded(values: list[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 1) for value in values]
