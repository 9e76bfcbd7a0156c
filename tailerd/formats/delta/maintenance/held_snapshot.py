"""Keeps the newest snapshot of a table, so that a job reads only the commits since the last one."""

from __future__ import annotations

import asyncio

from tailerd.errors import FileMissingError, TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.segment_replay import LARGE_COMMIT_BYTES
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.snapshot import Snapshot

COMMITS_AT_ONCE = 64


class HeldSnapshot:
    """Advances one snapshot by listings of its log. Used by one task at a time.

    It is opened again if advancing could be wrong: commits are missing, the table was replaced, or
    another writer wrote a checkpoint, which is a better base for the next one.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._snapshot: Snapshot | None = None
        self._last: LogFile | None = None

    @property
    def base_version(self) -> int:
        """The version from which the listing for `at` must start."""
        if self._snapshot is None:
            return 0
        return max(0, self._snapshot.checkpoint_version or 0)

    @property
    def version(self) -> int | None:
        """The version held; None without any."""
        return None if self._snapshot is None else self._snapshot.version

    @property
    def published(self) -> LogFile | None:
        """The commit that publishes the version held; None if the log has none."""
        return self._last

    def drop(self) -> None:
        """Drop the snapshot: its base may no longer be valid."""
        self._snapshot = self._last = None

    def replace(self, snapshot: Snapshot | None) -> None:
        """Continue with the same version on another base; None drops the snapshot."""
        if snapshot is None:
            self.drop()
        else:
            self._snapshot = snapshot

    async def at(self, listing: LogListing, *, with_files: bool) -> Snapshot:
        """Return the snapshot of a listing's newest version, or of a newer one.

        Args:
            listing: Of the log, at least from `base_version` on.
            with_files: Whether its live files must be indexed.

        Raises:
            TableError, StorageError: The log cannot be read.
        """
        held = self._snapshot
        if held is None or not self._leads_to(listing, held, with_files=with_files):
            return await self._open(with_files=with_files)
        # Cleanup may leave only a checkpoint.
        head = max(listing.commits, default=held.version)
        ahead = [listing.commits[version] for version in range(held.version + 1, head + 1)]
        try:
            for first in range(0, len(ahead), COMMITS_AT_ONCE):
                held = await self._advance(held, ahead[first : first + COMMITS_AT_ONCE])
        except FileMissingError:
            # Cleaned up after it was listed.
            return await self._open(with_files=with_files)
        except BaseException:
            # The index of files may have advanced already.
            self.drop()
            raise
        return held

    def _leads_to(self, listing: LogListing, held: Snapshot, *, with_files: bool) -> bool:
        head = max(listing.commits, default=-1)
        is_same = listing.commits.get(held.version) == self._last
        is_whole = all(v in listing.commits for v in range(held.version + 1, head + 1))
        newest = max((v for v in listing.checkpoints if v <= held.version), default=None)
        has_files = held.num_files is not None or not with_files
        return is_same and is_whole and has_files and newest == held.checkpoint_version

    async def _advance(self, held: Snapshot, files: list[LogFile]) -> Snapshot:
        commits = await self._commits(files)
        for commit in commits:
            held.state.after(commit).check_log()

        def apply() -> Snapshot:
            moved = held
            for commit in commits:
                moved = moved.advance(commit)
            return moved

        self._snapshot = await asyncio.to_thread(apply)
        self._last = files[-1]
        return self._snapshot

    async def _commits(self, files: list[LogFile]) -> list[Commit]:
        if any(file.size_bytes > LARGE_COMMIT_BYTES for file in files):
            return [(await self._reader.read_commit(file)).commit for file in files]
        return [found.commit for found in await self._reader.read_commits(files)]

    async def _open(self, *, with_files: bool) -> Snapshot:
        self.drop()
        snapshot, segment = await self._reader.open_listed(with_files=with_files)
        last = segment.ascending_commits[-1] if segment.ascending_commits else None
        if last is None or last.version != snapshot.version:
            try:
                last = await self._reader.commit_file(snapshot.version)
            except TailerdError:
                last = None
        self._snapshot, self._last = snapshot, last
        return snapshot
