"""Detects what a reader that requests only the next commit would miss: a gap, another table.

On a disk the folder's metadata shows whether anything changed. In a bucket, where every check is a
request, results are reused: a version that was just found absent is taken as absent, and one
listing shows both that the table is still the same and which commits follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress

from tailerd.changefeed.offset import Offset
from tailerd.clock import Clock
from tailerd.errors import MissingVersionError, NotATableError, TableError, TableRecreatedError
from tailerd.formats.delta.changes.commit_cache import CommitCache
from tailerd.formats.delta.log.log_reader import GAP_PATIENCE_SECONDS, LogReader
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.remedies import RESET_PIPELINE, RESTART
from tailerd.storage.base import FolderMark

FRESH_SECONDS = 1.0
"""How long an answer of the store is valid without another request; an event invalidates it."""

COPY_SECONDS = 0.02
"""Minimum time per commit in which another table can replace this one."""


class LogContinuityCheck:
    """Checks that the log of one followed table continues without gap or replacement.

    Args:
        name: The table's name, for errors.
        table_ids: Known identities of its log; the owner adds to them.
        window: Its commits.
        head_version: The newest version when it was opened.
    """

    def __init__(
        self,
        name: str,
        table_ids: Set[str],
        window: CommitCache,
        clock: Clock,
        head_version: int,
    ) -> None:
        self._name = name
        self._table_ids = table_ids
        self._window = window
        self._reader: LogReader = window.reader
        self._clock = clock
        self._need = RelistPolicy(window.reader, clock)
        self._seen_version = head_version
        self._notified_version = -1
        self._sure_at = clock.monotonic()
        self._listed_at = float("-inf")
        self._listed_absent: int | None = None
        self._spared: int | None = None
        self._is_woken = False

    def note_version(self, version: int | None) -> None:
        """Note that the table may have changed or a version may exist; the event may be wrong."""
        self._spared = None
        self._is_woken = True
        if version is not None:
            self._notified_version = max(self._notified_version, version)

    async def list_around(self, version: int) -> LogListing:
        """List the log around a version.

        Raises:
            TableRecreatedError: It is the log of another table.
            CommitChangedError: A commit that was read has changed.
        """
        await self._need.note()
        listing = await self._window.list_around(version)
        await self._check_unchanged(self._window.changed_since_read(listing.commits))
        self._seen_version = max(self._seen_version, listing.head_version or 0)
        self._listed_at, self._listed_absent = self._clock.monotonic(), self._window.absent
        return listing

    async def reach(self, start: Offset, furthest: Callable[[], Awaitable[Offset]]) -> Offset:
        """Return how far one step may go from `start`, the next commit; `start` if none exists.

        Case A: without a request, or by a listing that was due, it is known that none exists.
        Case B: none is found, and a listing shows whether it is not written yet or missing.
        Case C: one exists, and is checked to continue the previous commits.

        Args:
            start: The beginning of a commit, or a position inside it.
            furthest: Returns how far the step goes, from the commits that exist.

        Raises:
            NotATableError, TableRecreatedError: The table was dropped.
            MissingVersionError: Later versions exist.
            TableError: The next commit cannot be read correctly.
        """
        if await self._is_known_missing(start.version):  # Case A
            return start
        seen = self._window.newest
        await self._list_beyond(start.version)
        end = await furthest()
        if end == start:  # Case B
            await self.check_gap(start.version)
            # The listing may include a commit that was absent a moment ago.
            end = await furthest()
        if end != start:  # Case C
            await self._require_continued(start, end, seen)
        return end

    async def _is_known_missing(self, version: int) -> bool:
        """Return whether a version is known to be absent; otherwise allow it to be requested again.

        Raises:
            As `check_gap`, if a listing is due.
        """
        spared, self._spared = self._spared, None
        if spared == version and self.is_fresh:
            return True
        is_told = self._is_woken or self._notified_version >= version
        was_absent = self._listed_absent == version and not is_told
        if was_absent and await self._need.is_unchanged(self._window.newest):
            return True
        self._window.forget_absence()
        if not await self._need.is_late():
            return False
        await self.check_gap(version, is_certain=True)
        return self._window.absent == version

    async def _list_beyond(self, version: int) -> None:
        """Check by a listing, if another table may have replaced this one, that a commit is of it.

        Raises:
            TableRecreatedError: It is of another table.
        """
        seen = self._window.newest
        await self._window.commit(version)
        found = self._window.newest
        if found is None or seen is None or found is seen or await self._reader.mark() is not None:
            return
        elapsed = self._clock.monotonic() - self._sure_at
        if seen.version == version - 1 and elapsed > (version + 1) * COPY_SECONDS:
            listing = await self.list_around(version)
            if seen.version not in listing.commits:
                await self._check_for_another_table(seen)
        self._sure_at = self._clock.monotonic()

    async def _require_continued(self, start: Offset, end: Offset, seen: LogFile | None) -> None:
        """Make sure that a step continues in the log of this table.

        Args:
            start, end: Of the step; a different id after it is a table replaced within its log, if
                it is still the same log.
            seen: The newest commit's file before the step.

        Raises:
            TableRecreatedError: The step is of another table.
        """
        if start.table_id != end.table_id:
            # Rare, and a table that was created again may look the same.
            await self.require_same_table(max(start.version - 1, 0))
        elif await self._reader.mark() is not None:
            if seen is not None and seen.version == start.version - 1:
                await self._check_for_another_table(seen)
        elif self._window.absent == end.version:
            self._listed_at = self._clock.monotonic()
            self._spared = end.version

    @property
    def is_fresh(self) -> bool:
        """Whether `window.absent` was confirmed within `FRESH_SECONDS`."""
        return self._clock.monotonic() - self._listed_at <= FRESH_SECONDS

    async def known_head(self) -> int | None:
        """Return the newest version if it is fresh and a check would be a request; else None."""
        if self._window.absent is None or not self.is_fresh:
            return None
        return self._window.absent - 1 if await self._reader.mark() is None else None

    async def check_gap(self, version: int, *, is_certain: bool = False) -> None:
        """Make sure that an absent version is only not written yet.

        Args:
            is_certain: Whether a listing is due in any case.

        Raises:
            NotATableError, TableRecreatedError: The table was dropped.
            MissingVersionError: Later versions exist.
        """
        # A version that is known to have existed cannot be one that is not written yet.
        is_to_come = version > max(self._seen_version, self._notified_version)
        is_woken, self._is_woken = self._is_woken, False
        newest = self._window.newest
        if is_to_come and not is_certain and not await self._need.is_due(newest, is_woken=is_woken):
            return
        self._notified_version = -1
        listing = await self.list_around(version)
        self._check_still_there(listing, version)
        seen = self._window.newest
        if seen is not None and seen.version == version - 1:
            if seen.version not in listing.commits:
                await self._check_for_another_table(seen)
            self._sure_at = self._clock.monotonic()
        if version in listing.commits or not _is_beyond(listing, version):
            return
        # Some stores briefly list files out of order.
        await asyncio.sleep(GAP_PATIENCE_SECONDS)
        listing = await self.list_around(version)
        if version not in listing.commits and _is_beyond(listing, version):
            raise MissingVersionError(
                f"Version {version} of {self._name} is missing from the log, though version"
                f" {listing.head_version} is there: metadata cleanup removed it, or it was lost.",
                remedy=f"{RESTART}, and raise delta.logRetentionDuration.",
            )

    async def _check_for_another_table(self, seen: LogFile) -> None:
        """Raise if another log has replaced the one that `seen` belongs to."""
        found = await self._reader.commit_file(seen.version)
        if found is None:
            await self.require_same_table(seen.version)
        elif found != seen:
            await self._check_unchanged([found])

    async def _check_unchanged(self, changed: Sequence[LogFile]) -> None:
        """Make sure that it is the same table and changed files have the content read before.

        Sizes and times may agree by chance or be set; the same file is the same commit.
        """
        if changed:
            await self.require_same_table(changed[-1].version)
        for file in changed:
            await self._window.require_same_content(file)

    async def require_same_table(self, version: int | None = None) -> None:
        """Make sure that a version that was read, or else the newest, is of this table.

        Raises:
            TableRecreatedError: It is of another table.
        """
        snapshot = await self._snapshot(version)
        known, timeline = set(self._table_ids), self._window.timeline
        if version is not None and timeline.knows(version):
            # A commit that was read but not reached by a step may be `CREATE OR REPLACE TABLE`.
            known.add(timeline.at(version).metadata.id)
        if snapshot.state.metadata.id not in known:
            raise TableRecreatedError(
                f"{self._name} now holds table {snapshot.state.metadata.id}, and table"
                f" {', then '.join(sorted(self._table_ids))} was read before: it was dropped and"
                " created again.",
                remedy=RESET_PIPELINE,
            )

    async def _snapshot(self, version: int | None) -> Snapshot:
        """Rebuild a version without its files, or the newest if that is no longer possible."""
        if version is not None:
            with suppress(TableError):
                return (await self._reader.open_listed(version, with_files=False))[0]
        return (await self._reader.open_listed(with_files=False))[0]

    def _check_still_there(self, listing: LogListing, version: int) -> None:
        head = listing.head_version
        if head is None:
            raise NotATableError(
                f"The log of {self._name} is empty: the table was dropped.",
                remedy="Remove it from the configuration, or create it again and reset its offset.",
            )
        if head < version - 1:
            raise TableRecreatedError(
                f"The log of {self._name} ends at version {head}, and {version - 1} was read"
                " before: the table was dropped and created again, or restored from a copy.",
                remedy=RESET_PIPELINE,
            )


def _is_beyond(listing: LogListing, version: int) -> bool:
    return listing.head_version is not None and listing.head_version > version


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

    async def is_unchanged(self, seen: LogFile | None) -> bool:
        """Return whether the folder is certainly as it was listed, and so is the newest commit."""
        listed = self._listed_mark
        if listed is None or not listed.is_settled or seen is None:
            return False
        return not await self.is_due(seen)

    async def is_late(self) -> bool:
        """Return whether a listing is due for a log whose folder has no mark."""
        return self._listed_mark is None and self._is_time() and await self._reader.mark() is None

    def _is_time(self) -> bool:
        return self._clock.monotonic() - self._listed_at >= self.interval_seconds
