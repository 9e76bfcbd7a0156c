"""An event loop on which waiting costs nothing, and which can strike between any two steps.

When nothing is ready, time jumps to the next timer. Worker threads are steps of the loop itself,
some time later, so that a run is one sequence of steps that depends on nothing but its seed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

Result = TypeVar("Result")

MAX_STEPS = 2_000_000
TICK_DIGITS = 6
"""Time goes in whole microseconds, so that equal moments are equal whatever was added up."""
START_MS = 1_700_000_000_000


class StandstillError(AssertionError):
    """Nothing will ever happen again, or too much happens while no time passes."""


class _Jumper(selectors.SelectSelector):
    """Waits by moving the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if timeout is None:
            raise StandstillError("Everybody waits and no timer is set.")
        if self.turns > MAX_STEPS:
            raise StandstillError(f"{MAX_STEPS} turns of the loop and no end.")
        self.now = round(self.now + max(0.0, timeout), TICK_DIGITS)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module.

    Attributes:
        steps: Callbacks scheduled so far.
        thread_seconds: Says how long the next piece of work in a "thread" takes.
    """

    def __init__(self, thread_seconds: Callable[[], float] = lambda: 0.001) -> None:
        self._jumper = _Jumper()
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._timers = 0
        self.steps = 0
        self.thread_seconds = thread_seconds
        super().__init__(self._jumper)
        # Timers of one tick are due together.
        self._clock_resolution = 0.5 * 10**-TICK_DIGITS
        # Futures that die with a killed process would be reported as forgotten.
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self._jumper.now

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._timers += 1
        # Of one tick, the timer that was set first is first; a heap alone does not promise that.
        due = round(when, TICK_DIGITS) + self._timers * 1e-12
        return super().call_at(due, callback, *args, context=context)

    def strike_after(self, steps: int, alarm: Callable[[], None]) -> None:
        """Call `alarm` right after that many more steps; replaces an earlier one."""
        self._alarm = self.steps + steps, alarm

    def call_off(self) -> None:
        """Forget the alarm."""
        self._alarm = None

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self.steps += 1
        if self._alarm is not None and self.steps >= self._alarm[0]:
            alarm, self._alarm = self._alarm[1], None
            super().call_soon(alarm)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()

        def work() -> None:
            # Also when nobody waits any more: a thread that runs cannot be stopped.
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - passed on
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.thread_seconds(), work)
        return future


class LoopClock:
    """A `Clock` that shows the time of a virtual loop; its wall clock may jump."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        return START_MS + round(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
