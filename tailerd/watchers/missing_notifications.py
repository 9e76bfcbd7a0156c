"""Folders whose commits come, and of which nobody ever tells: a notification that is not set up."""

from __future__ import annotations

from collections.abc import Callable

from tailerd.clock import Clock

GRACE_SECONDS = 60.0
"""How late news of a commit may be that was found by looking."""


class MissingNotificationDetector:
    """Notices, once a folder, that its commits are only ever found by looking.

    Args:
        on_silent: Called with such a folder.
        on_spoken: Called with one when it is told of after all.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        on_silent: Callable[[str], None],
        on_spoken: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._on_silent = on_silent
        self._on_spoken = on_spoken
        self._told: set[str] = set()
        self._found_at: dict[str, float] = {}
        self._reported: set[str] = set()

    def told(self, folder: str) -> None:
        """Note news of a commit."""
        self._told.add(folder)
        self._found_at.pop(folder, None)
        if folder in self._reported:
            self._reported.discard(folder)
            self._on_spoken(folder)

    def looked(self, folder: str, is_untold: bool) -> None:
        """Note that a log was looked at, and whether commits were there that nobody had told of."""
        if folder in self._told or folder in self._reported:
            return
        now = self._clock.monotonic()
        if is_untold:
            self._found_at.setdefault(folder, now)
        if now - self._found_at.get(folder, now) >= GRACE_SECONDS:
            self._reported.add(folder)
            self._on_silent(folder)
