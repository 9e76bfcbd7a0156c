"""Time as an argument: the shell uses a `Clock`, the core takes `now`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol
from zoneinfo import ZoneInfo

_COPIES = ("posix/", "right/")
"""Folders that some systems keep next to the zones; zones in `right` count leap seconds."""


class Clock(Protocol):
    """The time functions that the shell needs; tests and simulations have their own."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch; may jump either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backward, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since some fixed point."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        await asyncio.sleep(seconds)


async def wait_at_most(clock: Clock, awaited: Awaitable[object], seconds: float) -> None:
    """Wait for something, but not longer than `seconds`; then it is cancelled."""
    waiting = asyncio.ensure_future(awaited)
    sleeping = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
    try:
        await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        sleeping.cancel()


def zone_named(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name.

    Raises:
        ValueError: There is none of that name.
    """
    try:
        if name.startswith(_COPIES) or not name.strip():
            raise ValueError(name)
        return ZoneInfo(name)
    # The name of a folder, of a path outside the folder of zones, or of no possible file.
    except (KeyError, OSError, ValueError):
        raise ValueError(
            "it is not a valid time zone name; write an IANA name, such as Europe/Berlin or UTC"
        ) from None
