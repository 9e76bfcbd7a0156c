"""Track the unacknowledged records of the producer: back-pressure and waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kafka.errors import KafkaTimeoutError

from tailerd.errors import SinkError, SinkTooSlowError

_CHECK_AFTER_SECONDS = 2.0


class AbandonedError(SinkError):
    """The delivery was abandoned while it was being sent."""

    code = "delivery_abandoned"


class NoProgressError(KafkaTimeoutError):  # type: ignore[misc]
    """Nothing was acknowledged for too long."""


class Acknowledgements:
    """Counts the bytes of one delivery in flight. Thread-safe; `reserve` and `wait` block.

    A wait fails if nothing was acknowledged for longer than the delivery timeout, so no wait is
    unbounded. What waits while others are acknowledged does not expire.
    """

    def __init__(
        self,
        *,
        window: SendWindow,
        timeout_seconds: float,
        explain: Callable[[Exception], Exception],
        check: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        """Start a delivery.

        Args:
            window: Limit above which `reserve` waits; a single larger piece is allowed.
            timeout_seconds: How long to wait for the next acknowledgement.
            explain: Maps the error of a failed piece to a tailerd error.
            check: Called every few seconds without progress; returns an error that ends the wait.
        """
        self._window = window
        self._patience = timeout_seconds
        self._explain = explain
        self._check = check
        self._checked_at = time.monotonic()
        self._changed = threading.Condition()
        self._bytes = 0
        self._pieces = 0
        self._error: Exception | None = None
        self._progress = time.monotonic()

    @property
    def in_flight_bytes(self) -> int:
        """Bytes not acknowledged yet."""
        return self._bytes

    @property
    def window_bytes(self) -> int:
        """The largest piece that should be sent."""
        return self._window.bytes

    def reserve(self, size_bytes: int) -> None:
        """Wait for room, then count a piece that is about to be passed to the producer.

        Raises:
            TailerdError: An earlier piece failed, or there is no progress.
        """
        with self._changed:
            failure = self._failure_before(
                lambda: not self._bytes or self._bytes + size_bytes <= self._window.bytes
            )
            if failure is None:
                if not self._pieces:
                    self._progress = time.monotonic()
                    self._window.start(self._progress)
                self._bytes += size_bytes
                self._pieces += 1
        self._raise(failure)

    def done(self, size_bytes: int, error: Exception | None) -> None:
        """Record that a piece was acknowledged or failed; never blocks for long, never raises."""
        with self._changed:
            self._bytes -= size_bytes
            self._pieces -= 1
            self._progress = time.monotonic()
            if error is None:
                self._window.acknowledge(size_bytes, self._progress)
            elif self._error is None:
                self._error = error
            if error is not None or not self._pieces or self._bytes <= self._window.bytes // 2:
                self._changed.notify_all()

    def wait(self) -> None:
        """Return once every piece is acknowledged.

        Raises:
            TailerdError: A piece failed, or there is no progress.
        """
        with self._changed:
            failure = self._failure_before(lambda: not self._pieces)
        self._raise(failure)

    def abandon(self) -> None:
        """Make all current and later waits fail."""
        with self._changed:
            if self._error is None:
                self._error = AbandonedError("The delivery was abandoned while it was being sent.")
            self._changed.notify_all()

    def _failure_before(self, is_reached: Callable[[], bool]) -> Exception | None:
        """Wait until the condition is reached; return the error if it cannot be."""
        while self._error is None and not is_reached():
            left = self._progress + self._patience - time.monotonic()
            if left <= 0:
                return NoProgressError(f"nothing was acknowledged for {self._patience:.0f} s")
            quiet = max(self._progress, self._checked_at) + _CHECK_AFTER_SECONDS - time.monotonic()
            if quiet > 0:
                self._changed.wait(min(left, quiet))
            elif (failure := self._check_brokers()) is not None:
                return failure
        return self._error

    def _check_brokers(self) -> Exception | None:
        # Without the lock: `look` queries the brokers, and the sender must continue meanwhile.
        self._changed.release()
        try:
            return self._check()
        finally:
            self._changed.acquire()
            self._checked_at = time.monotonic()

    def _raise(self, failure: Exception | None) -> None:
        # Outside the lock: `explain` may query the brokers, and the sender must continue meanwhile.
        if failure is not None:
            raise self._explain(failure) from failure


def too_slow(doing: str, error: NoProgressError) -> SinkTooSlowError:
    """Return the error for brokers that answer, but acknowledge nothing."""
    return SinkTooSlowError(
        f"{doing}: {error.args[0]}, although the brokers answer, so the connection to them is too"
        " slow, or they are overloaded.",
        remedy="The next attempt delivers half as much, in smaller requests. To be spared such"
        " attempts, lower max_bytes_per_batch of the table, or raise request_timeout_ms and"
        " delivery_timeout_ms under `producer`.",
    )


_MIN_BYTES = 64 * 1024
_MIN_SECONDS = 0.001


class SendWindow:
    """The bytes that may be in flight. Picklable; used by one thread at a time.

    All requests in flight share a connection. If more is queued than the link takes before the
    oldest request times out, the client drops the connection and begins again, so a slow link would
    never deliver anything.

    Attributes:
        bytes: The limit; a single larger record is allowed.
    """

    def __init__(self, max_bytes: int, *, seconds: float) -> None:
        """Begin with the maximum.

        Args:
            max_bytes: The configured maximum.
            seconds: How long it may take until all in flight is acknowledged.
        """
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._since = 0.0
        self._acknowledged = 0.0
        self.bytes = max_bytes

    def start(self, now: float) -> None:
        """Begin to measure: something is sent, and nothing else is in flight."""
        self._since, self._acknowledged = now, 0.0

    def acknowledge(self, size_bytes: int, now: float) -> None:
        """Adapt to the rate since `start`, with more weight on the last acknowledgements."""
        self._acknowledged += size_bytes
        elapsed = max(now - self._since, _MIN_SECONDS)
        possible = self._acknowledged / elapsed * self._seconds
        # A short time shows only that little was sent, not how much could have been.
        is_slow = elapsed > self._seconds / 4
        self._limit(possible if is_slow else max(possible, self.bytes))
        if elapsed > self._seconds:
            self._since, self._acknowledged = now - elapsed / 2, self._acknowledged / 2

    def shrink(self) -> None:
        """Begin again with the minimum, because nothing was acknowledged in time."""
        self._limit(0)

    def _limit(self, size_bytes: float) -> None:
        self.bytes = min(self._max_bytes, max(_MIN_BYTES, int(size_bytes)))
