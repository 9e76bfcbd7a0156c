"""Limit what is in flight to what the brokers acknowledge within a few seconds. Pure."""

from __future__ import annotations

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
        """Adapt to the rate since `start`, with more weight on what was acknowledged last."""
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
