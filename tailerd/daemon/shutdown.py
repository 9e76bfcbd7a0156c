"""Shuts down a daemon, and ends its process if the shutdown hangs.

Shutdown has two phases. The first signal lets every pipeline finish deliveries in flight; shortly
before the end of `shutdown_timeout`, or at a second signal, whatever still runs is cancelled.
Either way an offset is saved only after acknowledgement, so no change is lost: at most a delivery
is repeated. A process that has not ended by then is ended by a separate thread, which waits neither
for the loop nor for other threads: they may hang in the kernel.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from tailerd.telemetry import Telemetry, events

SPARK_GRACE_SECONDS = 10.0
"""Spark keeps `shutdown_timeout` itself, then needs this time to end its Java process."""
CANCEL_SECONDS = 2.0
"""Part of `shutdown_timeout` for cancelled tasks to end."""
_LEAVE_SECONDS = 5.0
"""The same after a second signal, when the machine may be busy."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """The state of a process's shutdown.

    Attributes:
        interrupted_by: The first signal that asked, if any.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        timeout: Callable[[], float],
        has_spark: Callable[[], bool],
        on_stuck: Callable[[], None] | None,
        is_own_process: bool,
    ) -> None:
        """Initialize.

        Args:
            telemetry: Receives the signals.
            timeout: Returns the currently configured `shutdown_timeout`, seconds.
            has_spark: Returns whether a table runs on Spark.
            on_stuck: Called in a separate thread when the process has not ended in time.
            is_own_process: Whether the process ends afterwards, so that signals no longer matter.
        """
        self.interrupted_by: signal.Signals | None = None
        self._telemetry = telemetry
        self._timeout = timeout
        self._has_spark = has_spark
        self._on_stuck = on_stuck
        self._is_own_process = is_own_process
        self._deadlines: list[threading.Timer] = []
        self._begun, self._hurried = asyncio.Event(), asyncio.Event()

    @property
    def is_begun(self) -> bool:
        """Whether the first phase has begun."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Begin the first phase, or the second when the first has begun."""
        if self._begun.is_set():
            self._hurried.set()
        self._begun.set()

    def begin_at_once(self) -> None:
        """Begin both phases."""
        self._end_within(_LEAVE_SECONDS)
        self.begin()
        self.begin()

    async def wait(self) -> None:
        """Wait for the first phase."""
        await self._begun.wait()

    async def patience(self, seconds: float) -> None:
        """Wait for `seconds`, or until the second phase."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()

    @contextmanager
    def signals(self, on_hangup: Callable[[], None] | None) -> Iterator[None]:
        """Handle signals; with `is_own_process` they are ignored afterwards, since it ends anyway.

        Args:
            on_hangup: Called at SIGHUP, which is not handled without it.
        """
        loop = asyncio.get_running_loop()
        actions: dict[signal.Signals, Callable[[], None]] = {
            number: partial(self._on_signal, number) for number in _SIGNALS
        }
        if on_hangup is not None:
            actions[signal.SIGHUP] = on_hangup

        def on_signal(number: int, _: FrameType | None) -> None:
            if number in _SIGNALS:
                # In the signal handler: the loop itself may hang.
                self._limit()
            loop.call_soon_threadsafe(actions[signal.Signals(number)])

        # Not the loop's own handlers: after they are removed, a signal before the end of the
        # process would kill it and replace its exit status.
        before = {number: signal.signal(number, on_signal) for number in actions}
        try:
            yield
        finally:
            for number, handler in before.items():
                if self._is_own_process:
                    _ignore(number)
                else:
                    signal.signal(number, handler)
            if not self._is_own_process:
                for deadline in self._deadlines:
                    deadline.cancel()

    def _limit(self) -> None:
        """Start a deadline at the first signal and another at the second; later ones add none."""
        grace = SPARK_GRACE_SECONDS if self._has_spark() else 0.0
        if not self._deadlines:
            timeout = max(self._timeout(), CANCEL_SECONDS)
            self._end_within(timeout + grace + (CANCEL_SECONDS if grace else 0.0))
        elif len(self._deadlines) == 1:
            self._end_within(_LEAVE_SECONDS + grace)

    def _end_within(self, seconds: float) -> None:
        """Ensure that the process ends, even if a part hangs; the earliest call counts."""
        if self._on_stuck is not None:
            deadline = threading.Timer(seconds, self._on_stuck)
            deadline.daemon = True
            deadline.start()
            self._deadlines.append(deadline)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.interrupted_by is None:
            self.interrupted_by = number
        self._telemetry.emit(events.ShutdownRequested(reason=number.name))
        self.begin()


def _ignore(number: signal.Signals) -> None:
    """Ignore a signal from now on.

    The kernel ignores it first. Otherwise one that comes while Python changes its handler is
    neither handled nor ignored: Python prints a traceback about a race condition.
    """
    ctypes.CDLL(None).signal(number.value, ctypes.c_void_p(signal.SIG_IGN.value))
    signal.signal(number, signal.SIG_IGN)
