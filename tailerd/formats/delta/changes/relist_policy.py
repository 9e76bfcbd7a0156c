"""Decides when a log without a new commit is listed: only a listing shows a gap."""

from __future__ import annotations

from tailerd.clock import Clock
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.storage.base import FolderMark

SAFETY_LISTING_SECONDS = 10.0
"""How often the log is listed although the next commit does not exist: nothing else shows a gap or
a dropped table. Not used if the folder's own metadata shows changes."""

REMOTE_LISTING_SECONDS = 600.0
"""The same for stores that charge for listings."""


class RelistPolicy:
    """Records the last listing of a table's log, and the folder's mark at that time."""

    def __init__(self, reader: LogReader, clock: Clock) -> None:
        """Start without a listing: one is due."""
        self._reader = reader
        self._clock = clock
        self._listed_at = float("-inf")
        is_remote = reader.store.is_remote
        self.interval_seconds = REMOTE_LISTING_SECONDS if is_remote else SAFETY_LISTING_SECONDS
        self._listed_mark: FolderMark | None = None

    async def note(self) -> None:
        """Note that the log is listed next; a change during the listing changes the mark again."""
        self._listed_at = self._clock.monotonic()
        self._listed_mark = await self._reader.mark()

    async def is_due(self, seen: LogFile | None, *, is_woken: bool = False) -> bool:
        """Return whether another listing is needed to check the log.

        Case A: the folder's mark differs, or the folder is gone: files were added or removed.
        Case B: the mark is the same and was settled: at most a file was written to in place.
        Case C: the mark is the same and was not settled, or there is none: time decides; after an
            event, the newest commit is also checked for a write in place.

        Args:
            seen: The newest commit's file, as first seen.
            is_woken: Whether an event was received.
        """
        mark, listed = await self._reader.mark(), self._listed_mark
        if listed is not None:
            if mark is None or mark.identity != listed.identity:
                return True
            if listed.is_settled or is_woken:
                is_other = seen is not None and await self._reader.commit_file(seen.version) != seen
                if is_other or listed.is_settled:
                    return is_other
        return self._is_time()

    async def is_late(self) -> bool:
        """Return whether a listing is due for a log whose folder has no mark."""
        return self._listed_mark is None and self._is_time() and await self._reader.mark() is None

    def _is_time(self) -> bool:
        return self._clock.monotonic() - self._listed_at >= self.interval_seconds
