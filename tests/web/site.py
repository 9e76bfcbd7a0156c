"""The real listener and page over events that a test makes up, in a separate thread."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Self

from tailerd.changefeed.offset import Offset, Version
from tailerd.clock import SystemClock
from tailerd.config import Address
from tailerd.pipeline.reset import Reset, Skipped
from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web.control import ControlRoutes
from tailerd.web.dashboard import Dashboard
from tailerd.web.pages import Pages
from tailerd.web.server import WebServer
from tests.doubles.owned_state import owned_state


class Site:
    """Serves until it is left; `tell` is what pipelines would tell.

    Attributes:
        url: Where.
        requested: What was steered: (action, table).
        skipped: What a reset would leave out.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requested: list[tuple[str, str]] = []
        self.skipped: Skipped | None = None
        clock = SystemClock()
        self.status = StatusBoard([], clock)
        self._folder = tempfile.TemporaryDirectory()
        self.dashboard = Dashboard(
            self.status,
            owned_state(Path(self._folder.name)).history,
            clock=clock,
            maintain=lambda name: self._note("maintain", name),
        )
        self._telemetry = Telemetry([self.status.handle, *self.dashboard.handlers()])
        self._pages = Pages(metrics=Metrics(clock), status=self.status)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._folder.cleanup()

    def tell(self, *reported: events.Event) -> None:
        for event in reported:
            self._telemetry.emit(event)

    def add(self, name: str, **lag: int) -> None:
        """Add a table that runs, so many `versions` behind."""
        self.tell(
            events.TableAdded(table=name, engine="arrow", path=f"/lake/{name}"),
            events.PipelineStarted(table=name, source=f"/lake/{name}", sink="file", engine="arrow"),
        )
        self.move(name, 0, **lag)

    def move(self, name: str, version: int, *, versions: int = 0) -> None:
        """Let a table be at a version, and something delivered."""
        oldest_ms = SystemClock().now_ms() - 5000 if versions else None
        self.tell(
            events.DeliveryAcknowledged(
                table=name,
                sink="file",
                engine="arrow",
                start_version=version,
                end_version=version,
                rows={"insert": 3, "delete": 1},
                bytes=100,
                duration_seconds=0.01,
            ),
            events.BacklogMeasured(
                table=name,
                engine="arrow",
                version=version + 1,
                head_version=version + versions,
                versions=versions,
                oldest_timestamp_ms=oldest_ms,
                delivered_version=version,
            ),
        )

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        routes = [
            *self._pages.routes(),
            *ControlRoutes(self).routes(),
            *self.dashboard.routes(),
        ]
        async with WebServer(Address(host="127.0.0.1", port=0), routes) as server:
            self.url = server.url
            running = asyncio.create_task(self.dashboard.run())
            self._ready.set()
            await self._ending.wait()
            running.cancel()

    def _note(self, action: str, name: str) -> bool:
        self.requested.append((action, name))
        return True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(table.table for table in self.status.tables)

    def can_reset(self, name: str) -> bool:
        return True

    async def pause(self, name: str, by: str = "") -> None:
        self._note("pause", name)

    async def resume(self, name: str) -> None:
        self._note("resume", name)

    async def preview_reset(self, name: str, to: str) -> Reset:
        return Reset(offset=Offset(table_id="t", version=Version(0)), skipped=self.skipped)

    async def reset(self, name: str, to: str) -> Reset:
        self._note(f"reset to {to}", name)
        return await self.preview_reset(name, to)
