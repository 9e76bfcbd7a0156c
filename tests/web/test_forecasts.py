"""Forecasts of all tables: only while somebody looks, and behind an operator's queries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tailerd.errors import ExplorerBusyError, UsageError
from tailerd.formats.growth import Growth
from tailerd.web.forecasts import POLL_SECONDS, Forecasts
from tests.doubles.sim_clock import SimClock

SIX_HOURS = 6 * 3600.0


@dataclass
class Reader:
    """Logs of tables, and what was read of them."""

    failures: dict[str, Exception] = field(default_factory=dict)
    tables: list[str] = field(default_factory=lambda: ["a", "b"])
    read: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    is_viewed: bool = True

    async def __call__(self, name: str) -> Growth:
        self.read.append(name)
        if name in self.failures:
            raise self.failures[name]
        return Growth(
            version=1,
            size_bytes=100,
            num_files=1,
            num_rows=None,
            since="",
            commits=2,
            grown={},
            forecast={"in 30 days": {"size_bytes": 400, "num_files": 4}},
            unusual_commits=(),
            files_after_optimize=None,
        )

    @asynccontextmanager
    async def running(self, clock: SimClock) -> AsyncIterator[Forecasts]:
        forecasts = Forecasts(
            measured=lambda: self.tables,
            read=self,
            is_viewed=lambda: self.is_viewed,
            on_change=self.changed.append,
            clock=clock,
        )
        running = asyncio.ensure_future(forecasts.run())
        await asyncio.sleep(0)
        try:
            yield forecasts
        finally:
            running.cancel()


async def test_each_log_is_read_once_in_six_hours() -> None:
    reader, clock = Reader(), SimClock()
    async with reader.running(clock) as forecasts:
        for _ in range(3):
            await clock.advance(POLL_SECONDS)
        assert reader.read == reader.changed == ["a", "b"]
        assert forecasts.month_bytes("a") == 300
        await clock.advance(SIX_HOURS)
        assert reader.read == ["a", "b"] * 2
        forecasts.forget("a")
        await clock.advance(POLL_SECONDS)
        assert reader.read == ["a", "b"] * 2 + ["a"]


async def test_nothing_is_read_while_no_page_is_open() -> None:
    reader, clock = Reader(is_viewed=False), SimClock()
    async with reader.running(clock):
        await clock.advance(POLL_SECONDS * 3)
        assert reader.read == []
        reader.is_viewed = True
        await clock.advance(POLL_SECONDS)
        assert reader.read == ["a", "b"]


async def test_a_fault_in_reading_a_log_does_not_end_the_daemon() -> None:
    reader, clock = Reader({"a": ValueError("a fault of ours")}), SimClock()
    async with reader.running(clock) as forecasts:
        await clock.advance(POLL_SECONDS)
        assert (forecasts.month_bytes("a"), forecasts.month_bytes("b")) == (None, 300)


async def test_a_log_without_sizes_is_not_read_again_and_a_busy_table_is() -> None:
    reader, clock = Reader({"a": UsageError("no"), "b": ExplorerBusyError("later")}), SimClock()
    async with reader.running(clock) as forecasts:
        await clock.advance(POLL_SECONDS)
        assert forecasts.month_bytes("a") is None
        reader.failures.clear()
        await clock.advance(POLL_SECONDS)
        assert reader.read == ["a", "b", "b"]
        assert (forecasts.month_bytes("a"), forecasts.month_bytes("b")) == (None, 300)
