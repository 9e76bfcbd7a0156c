"""When a log that seems to have nothing new is listed all the same: only that shows a gap."""

from __future__ import annotations

from tailerd.clock import Clock
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.storage.base import FolderMark

SAFETY_LISTING_SECONDS = 10.0
"""How often the log is listed although the next commit's name says nothing is new: a gap, or a
table that was dropped, shows in no other way. Not where the folder itself tells of changes."""

REMOTE_LISTING_SECONDS = 600.0
"""The same where listing is a request that is paid for."""


class RelistPolicy:
    """Remembers the last listing of a table's log and what the folder was like."""

    def __init__(self, reader: LogReader, clock: Clock) -> None:
        """Know of no listing yet: one is due."""
        self._reader = reader
        self._clock = clock
        self._listed_at = float("-inf")
        is_remote = reader.store.is_remote
        self.interval_seconds = REMOTE_LISTING_SECONDS if is_remote else SAFETY_LISTING_SECONDS
        self._listed_mark: FolderMark | None = None

    async def note(self) -> None:
        """Note that the log is listed next: what comes meanwhile will make another mark."""
        self._listed_at = self._clock.monotonic()
        self._listed_mark = await self._reader.mark()

    async def is_due(self, seen: LogFile | None, *, is_woken: bool = False) -> bool:
        """Return whether only another listing can tell if something is wrong with the log.

        Case A: the folder's mark is another, or the folder gone: something came or went.
        Case B: it is the same and was settled: at most a file was written to in place.
        Case C: it is the same and was not settled, or there is none: time decides, but that the
            newest commit may have been written to in place if somebody said that something was.

        Args:
            seen: The newest commit's file, as it was seen first.
            is_woken: Whether somebody said that something happened.
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
        """Return whether it is time for a listing where nothing but a listing tells of changes."""
        return self._listed_mark is None and self._is_time() and await self._reader.mark() is None

    def _is_time(self) -> bool:
        return self._clock.monotonic() - self._listed_at >= self.interval_seconds
