"""Detect folders with commits but without notifications, because none are configured."""

from __future__ import annotations

from collections.abc import Callable

from tailerd.clock import Clock

GRACE_SECONDS = 60.0
"""How late the notification of a commit that a poll found may arrive."""


class MissingNotificationDetector:
    """Detects, once per folder, that its commits are only found by polling.

    Args:
        on_missing: Called with such a folder.
        on_received: Called with a reported folder when it gets a notification after all.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        on_missing: Callable[[str], None],
        on_received: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._on_missing = on_missing
        self._on_received = on_received
        self._notified: set[str] = set()
        self._found_at: dict[str, float] = {}
        self._reported: set[str] = set()

    def note_notification(self, folder: str) -> None:
        """Record a notification of a commit."""
        self._notified.add(folder)
        self._found_at.pop(folder, None)
        if folder in self._reported:
            self._reported.discard(folder)
            self._on_received(folder)

    def on_poll(self, folder: str, is_unannounced: bool) -> None:
        """Record a poll of a log, and whether it found commits without a notification."""
        if folder in self._notified or folder in self._reported:
            return
        now = self._clock.monotonic()
        if is_unannounced:
            self._found_at.setdefault(folder, now)
        if now - self._found_at.get(folder, now) >= GRACE_SECONDS:
            self._reported.add(folder)
            self._on_missing(folder)
