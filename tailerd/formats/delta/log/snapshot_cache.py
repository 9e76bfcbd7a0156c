"""The newest snapshot of a table, advanced one commit at a time and never reloaded."""

from __future__ import annotations

import asyncio

from tailerd.errors import BugError
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.snapshot import Snapshot


class SnapshotCache:
    """Holds one table's snapshot and advances it.

    Case A: the next commit exists: the snapshot advances by it.
    Case B: it does not exist: nothing happens; one request was made.

    Args:
        reader: The table's log.
        with_files: Whether live files are indexed.
        in_thread: Whether commits are applied in a worker thread: an index that is folded, or a
            commit of very many files, takes longer than an event loop should wait.
    """

    def __init__(
        self, reader: LogReader, *, with_files: bool = True, in_thread: bool = False
    ) -> None:
        self.reader = reader
        self._in_thread = in_thread
        self._with_files = with_files
        self._snapshot: Snapshot | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot seen.

        Raises:
            BugError: `open` was not called.
        """
        if self._snapshot is None:
            raise BugError("The snapshot cache was asked before it was opened.")
        return self._snapshot

    async def open(self, version: int | None = None) -> Snapshot:
        """Load a version (None: the newest) from the log.

        Raises:
            TableError: As `LogReader.open`.
        """
        self._snapshot = await self.reader.open(version, with_files=self._with_files)
        return self._snapshot

    async def advance(self) -> CommitBody | None:
        """Apply the next commit, if it exists; return it.

        Raises:
            TableError: The commit is damaged, or changes to a protocol that is not supported.
        """
        found = await self.reader.find_commit(self.snapshot.version + 1)
        if found is None:  # Case B
            return None
        # Case A. Checked first: advancing takes the files away from the snapshot that stays.
        self.snapshot.state.after(found.commit).check_rows()
        if self._in_thread:
            self._snapshot = await asyncio.to_thread(self.snapshot.advance, found.commit)
        else:
            self._snapshot = self.snapshot.advance(found.commit)
        return found
