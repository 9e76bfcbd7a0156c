"""Measures the length of a table's log since the last checkpoint."""

from __future__ import annotations

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_segment import LogListing

RECENT_SECONDS = 60.0
"""How often the newest part of the log is listed, while there are new commits."""
WHOLE_SECONDS = 3600.0
"""How often the whole log is listed: cleanup removes its oldest files."""


class LogTally:
    """Counts files of one log: listed periodically, updated by every commit in between.

    Attributes:
        checkpoint_version: The newest complete checkpoint; None without one.
        commits, bytes: Commits after it, and their bytes: what a reader replays.
        files: Files of the log.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.checkpoint_version: int | None = None
        self.commits = 0
        self.bytes = 0
        self.files = 0
        self._older_files = 0
        self._listed_from = 0
        self._whole_at = float("-inf")
        self._listed_at = float("-inf")
        self._newest = -1
        self.is_settled = True

    async def look(self, now: float) -> bool:
        """List the log if that is due; return whether it was.

        Args:
            now: Monotonic seconds.

        Raises:
            StorageError: The log cannot be listed.
        """
        if now - self._whole_at >= WHOLE_SECONDS:
            self._learn(await self._reader.list_log(), 0)
            self._whole_at = now
        elif now - self._listed_at >= RECENT_SECONDS:
            self._learn(await self._reader.list_log(self._listed_from), self._older_files)
        else:
            return False
        self._listed_at = now
        self.is_settled = True
        return True

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next listing is due; None while there are no commits."""
        return None if self.is_settled else max(0.0, self._listed_at + RECENT_SECONDS - now)

    def expire(self) -> None:
        """Make the next `look` list the newest part of the log: a checkpoint was written."""
        self._listed_at = float("-inf")
        self.is_settled = False

    def advance(self, file: LogFile) -> None:
        """Count a new commit."""
        if file.version <= self._newest:
            # The listing included it already.
            return
        self._newest = file.version
        self.commits += 1
        self.bytes += file.size_bytes
        self.files += 1
        self.is_settled = False

    def _learn(self, listing: LogListing, older_files: int) -> None:
        if listing.checkpoints:
            self.checkpoint_version = max(listing.checkpoints)
        after = -1 if self.checkpoint_version is None else self.checkpoint_version
        since = [file for version, file in listing.commits.items() if version > after]
        self.commits = len(since)
        self.bytes = sum(file.size_bytes for file in since)
        self.files = older_files + _count(listing, 0)
        self._newest = max(listing.commits, default=-1)
        if not older_files:
            self._listed_from = max(0, after)
            self._older_files = self.files - _count(listing, self._listed_from)


def _count(listing: LogListing, start: int) -> int:
    """Return the number of files in a listing for versions from `start` on."""
    checkpoints = listing.checkpoints.items()
    return (
        sum(version >= start for version in listing.commits)
        + sum(len(parts) for version, found in checkpoints if version >= start for parts in found)
        + sum(file.version >= start for file in listing.compactions)
        + sum(version >= start for version in listing.checksum_versions)
    )
