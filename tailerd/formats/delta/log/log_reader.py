"""Opens versions of a table and reads its commits. Decides nothing the protocol decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    FileMissingError,
    NotAFileError,
    TableError,
    TooLargeError,
    TornCommitError,
)
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.segment_replay import (
    LARGE_COMMIT_BYTES,
    DamagedCheckpointError,
    replay_segment,
)
from tailerd.formats.delta.protocol.actions import Line
from tailerd.formats.delta.protocol.commit_file import SLICE_BYTES, Commit, CommitScan
from tailerd.formats.delta.protocol.commit_timestamp import LOOK_BACK_VERSIONS
from tailerd.formats.delta.protocol.last_checkpoint import parse_last_checkpoint
from tailerd.formats.delta.protocol.log_path import (
    LAST_CHECKPOINT,
    LogFile,
    checksum_name,
    commit_log_file,
    commit_name,
)
from tailerd.formats.delta.protocol.log_segment import LogListing, LogSegment
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.formats.delta.protocol.version_checksum import (
    parse_version_checksum,
    validate_checksum,
)
from tailerd.storage.base import FileMeta, ObjectStore, ShowsUnfinished
from tailerd.storage.stores import Stores

T = TypeVar("T")

MOST_HINT_BYTES = 1024 * 1024
"""Writers keep `_last_checkpoint` below a few kilobytes; a larger one is none."""
MOST_CHECKSUM_BYTES = 16 * 1024 * 1024
"""Version checksums may have the schema and some files; a larger one is not looked at."""

GAP_PATIENCE_SECONDS = 0.5
"""Folders and stores exist that show a file later than the one written after it."""
GAP_LOOKS = 5
"""So often it is looked again, each time for another file: some may show now one, now the other."""

DECODED_ONCE_BYTES = 1024 * 1024
"""The lines of a commit up to this size are kept decoded, from finding it to planning its tasks."""

STILL_SECONDS = 1.0
"""So long a commit must stand still where nothing else tells that its writer has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """A commit that was found, scanned once.

    Attributes:
        body: Its bytes, or None when it is too large to be held.
        lines: Its lines, decoded, unless it is larger than `DECODED_ONCE_BYTES`.
    """

    file: LogFile
    commit: Commit
    body: bytes | None
    lines: list[Line] | None = None

    @property
    def held_bytes(self) -> int:
        """About how much memory its body and lines take; decoded, a line takes its length again."""
        return len(self.body or b"") * (1 if self.lines is None else 2)


def _all_that_is_left(damage: TableError | None) -> TableError | None:
    """Explain of a damaged checkpoint that the version cannot be read without it."""
    if damage is None or isinstance(damage, TooLargeError):
        return damage
    lost = "No older checkpoint and no complete run of commits gives this version."
    return damage.restated(f"{damage.message} {lost}")


class LogReader(LogFolder):
    """Reads one table's log.

    Args:
        store, root: Where the table is: a store and the table's path in it.
        torn_wait_seconds: How long a torn newest commit is given to become whole.
        on_mismatch: Told of a version checksum that differs from the replay; without it, that is
            an error. Replay follows the protocol and checksums are only a second opinion, so
            commands tell their user and go on. Told of damaged checkpoints that are skipped,
            too.
        with_rows: Whether commits that are read tell how many rows their files have.
        memory_bytes: The configured `memory`, which reading a file keeps within.

    Attributes:
        finished: The newest commit that was found whole, where a store shows others too.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        *,
        torn_wait_seconds: float = 2.0,
        on_mismatch: Callable[[CorruptLogError], None] | None = None,
        with_rows: bool = False,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        super().__init__(store, root, memory_bytes=memory_bytes)
        self._torn_wait_seconds = torn_wait_seconds
        self._on_mismatch = on_mismatch
        self._with_rows = with_rows
        self._skipped: set[int | None] = set()
        self._unfinished = self.store if isinstance(self.store, ShowsUnfinished) else None
        self.finished: LogFile | None = None

    @classmethod
    def at(
        cls,
        table: str,
        *,
        on_mismatch: Callable[[CorruptLogError], None] | None = None,
        allowed: Iterable[str] = (),
        stores: Stores | None = None,
    ) -> LogReader:
        """Return the reader of the table at a path or URL.

        Args:
            allowed: Places that symbolic links in the log may lead to.
            stores: By default what the environment says.

        Raises:
            ConfigError: No store serves this place.
        """
        store, root = (stores or Stores()).locate_table(table, allowed)
        return cls(store, root, on_mismatch=on_mismatch)

    async def open(self, version: int | None = None, *, with_files: bool = True) -> Snapshot:
        """Rebuild a version (None: the newest) from as little of the log as possible.

        Damaged or incomplete checkpoints are passed over as long as the rest of the log suffices.

        Args:
            with_files: Whether to index live files and validate the version checksum.

        Raises:
            NotATableError, MissingVersionError: The version is not there. That one in the middle
                is not there is believed after a second look.
            TornCommitError, CorruptLogError, ChecksumMismatchError: The log is damaged.
            UnsupportedFeatureError: The table may not be read by this release.
        """
        snapshot, _ = await self.open_listed(version, with_files=with_files)
        snapshot.state.check_rows()
        return snapshot

    async def open_listed(
        self, version: int | None = None, *, with_files: bool = True
    ) -> tuple[Snapshot, LogSegment]:
        """Rebuild a version as `open` does, and tell from which files.

        Only the log need be understood: whether rows may be read is for the caller to check.
        """
        return await self._patiently(lambda: self._open_listed(version, with_files))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again while a commit is torn: its writer may need a moment.

        Raises:
            TornCommitError: It stays torn for `torn_wait_seconds`.
        """
        pause = 0.02
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._torn_wait_seconds
        while True:
            try:
                return await attempt()
            except TornCommitError as error:
                if clock() + pause > deadline:
                    raise TornCommitError(
                        error.message,
                        remedy=error.remedy
                        or "If no writer is at work, remove the file: it was never committed.",
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    async def _open_listed(
        self, version: int | None, with_files: bool
    ) -> tuple[Snapshot, LogSegment]:
        listing = await self._list_for(version)
        excluded: set[str] = set()
        damage: TableError | None = None
        skipped: int | None = None
        awaited: list[int] = []
        while True:
            try:
                segment = LogSegment.for_version(
                    listing, version, place=self.url, excluded=frozenset(excluded)
                )
            except TableError as error:
                lacking = listing.gap(version, frozenset(excluded))
                if lacking is None or lacking in awaited[-1:] or len(awaited) == GAP_LOOKS:
                    raise _all_that_is_left(damage) or error from error
                # A folder that is listed while it grows may show a file and not the one before.
                awaited.append(lacking)
                await asyncio.sleep(GAP_PATIENCE_SECONDS)
                listing = await self._list_again(version, excluded)
                continue
            try:
                if segment.version == listing.head_version and segment.ascending_commits:
                    await self._require_finished(segment.ascending_commits[-1])
                snapshot = await self._replay(segment, with_files)
            except DamagedCheckpointError as error:
                damage, skipped = error.damage, segment.checkpoint_version
                excluded.update(file.name for file in segment.checkpoint)
                listing = await self.list_log()
            except FileMissingError:
                # Cleanup removes commits while they are read: what is there now tells more.
                before, listing = listing, await self._list_again(version, excluded)
                if listing == before:
                    raise
            else:
                snapshot.state.check_log()
                if damage is not None:
                    self._tell_skipped(skipped, damage)
                return snapshot, segment

    def _tell_skipped(self, version: int | None, damage: TableError) -> None:
        """Warn of a damaged checkpoint that the log did without; of each once."""
        if self._on_mismatch is None or version in self._skipped:
            return
        self._skipped.add(version)
        self._on_mismatch(
            CorruptLogError(
                f"The checkpoint of version {version} cannot be used and is skipped:"
                f" {damage.message}",
                remedy="Keep the commits and checkpoints before it: the table is read from them"
                " until a newer checkpoint is written.",
            )
        )

    async def _list_again(self, version: int | None, excluded: set[str]) -> LogListing:
        # Without the checkpoint of the hint it matters what lies before.
        return await (self.list_log() if excluded else self._list_for(version))

    async def _list_for(self, version: int | None) -> LogListing:
        start = 0
        try:
            body = await self.small_body(LAST_CHECKPOINT, MOST_HINT_BYTES)
            hint = None if body is None else parse_last_checkpoint(body)
        except (FileMissingError, NotAFileError):
            # It only saves time, whatever stands there.
            hint = None
        if hint is not None and (version is None or hint.version <= version):
            start = max(0, hint.version - LOOK_BACK_VERSIONS)
        listing = await self.list_log(start)
        usable = [v for v in listing.checkpoints if version is None or v <= version]
        if start and not usable:
            # The hint pointed nowhere, or at a checkpoint that lacks a part.
            return await self.list_log()
        return listing

    async def _replay(self, segment: LogSegment, with_files: bool) -> Snapshot:
        snapshot = await replay_segment(self, segment, with_files=with_files)
        if with_files and segment.checksum_version is not None:
            await self._validate(snapshot)
        return snapshot

    async def _validate(self, snapshot: Snapshot) -> None:
        try:
            body = await self.small_body(checksum_name(snapshot.version), MOST_CHECKSUM_BYTES)
        except FileMissingError:
            return
        checksum = None if body is None else parse_version_checksum(body)
        if checksum is None:
            return
        try:
            validate_checksum(snapshot, checksum)
        except ChecksumMismatchError as error:
            if self._on_mismatch is None:
                raise
            self._on_mismatch(error)

    async def read_commits(
        self, files: Sequence[LogFile], *, is_newest: bool = True
    ) -> list[CommitBody]:
        """Fetch and scan several commits that are small enough to be held.

        Args:
            is_newest: Whether the last of them may be the newest there is.

        Raises:
            TornCommitError, CorruptLogError: One is damaged.
            FileMissingError: One is gone.
        """
        if is_newest:
            await self._require_finished(files[-1])
        bodies = await self.store.get_many([self.path_of(file) for file in files])
        return await asyncio.to_thread(self._scan_all, files, bodies)

    def _scan_all(self, files: Sequence[LogFile], bodies: Sequence[bytes]) -> list[CommitBody]:
        return [self._scan(*each) for each in zip(files, bodies, strict=True)]

    def _scan(self, file: LogFile, body: bytes) -> CommitBody:
        scan = self._begin_scan(file, keeps_lines=len(body) <= DECODED_ONCE_BYTES)
        commit = scan.whole(body)
        return CommitBody(file=file, commit=commit, body=body, lines=scan.lines)

    def _begin_scan(self, file: LogFile, *, keeps_lines: bool = False) -> CommitScan:
        return CommitScan(
            file.version,
            file.name,
            self.url,
            with_rows=self._with_rows,
            keeps_lines=keeps_lines,
            memory_bytes=self.memory_bytes,
        )

    async def find_commit(self, version: int) -> CommitBody | None:
        """Ask for a commit by its name: one request, whether or not it is there, unless it is long.

        Returns:
            The commit, or None when there is none of that version yet.

        Raises:
            TornCommitError, CorruptLogError: It is damaged.
            FileMissingError: It is gone before it was read whole.
        """
        return await self._patiently(lambda: self._find_commit(version))

    async def _find_commit(self, version: int) -> CommitBody | None:
        name = commit_name(version)
        try:
            meta, body = await self.store.fetch(f"{self.path}/{name}", 0, LARGE_COMMIT_BYTES)
        except FileMissingError:
            return None
        file = commit_log_file(version, meta.size_bytes, meta.mtime_ms, meta.identity)
        if meta.size_bytes > LARGE_COMMIT_BYTES:
            return await self._read_commit(file)
        await self._require_finished(file, is_read=True)
        return await self._scanned(file, body)

    async def _require_finished(self, file: LogFile, *, is_read: bool = False) -> None:
        """Make sure that the writer of a commit, which may be the newest, has finished.

        That it ends with a line proves nothing. Older ones are not asked about: writers that follow
        the protocol begin a version when they have seen the one before, whole.

        Case A: the store shows files when they are whole, or knows that this one is.
        Case B: it is being written.
        Case C: nobody can tell: the kernel may still say so, or else two looks some time apart must
            find the same. How long ago it was written is not asked, for the clock of a file
            server may be another than ours.

        Args:
            is_read: Whether it was read before, so that it must still be as it was then.

        Raises:
            TornCommitError: It has not, as far as can be told.
        """
        if self._unfinished is None or file == self.finished:  # Case A
            return
        path = self.path_of(file)
        # One that is gone was cleaned up, so that it is not the newest.
        with suppress(FileMissingError):
            now, is_finished = await self._unfinished.look_finished(path)
            if is_finished is None:  # Case C
                is_finished = await self._unfinished.wait_finished(path, STILL_SECONDS)
                before, now = now, await self.store.head(path)
                is_finished = is_finished or _is_like(before, now)
            if not is_finished or (is_read and not _is_like(file, now)):  # Case B
                raise TornCommitError(
                    f"{file.name} is still being written: it is no commit before its writer has"
                    " closed it.",
                    remedy="Wait for the writer; one that creates commits atomically, by rename or"
                    " by put-if-absent, avoids this wait.",
                )
            self.finished = commit_log_file(
                file.version, now.size_bytes, now.mtime_ms, now.identity
            )

    async def read_commit(self, file: LogFile) -> CommitBody:
        """Fetch and scan one commit; a torn one is given time to become whole.

        Raises:
            TornCommitError: It stays incomplete.
            CorruptLogError: It is damaged.
            FileMissingError: It is gone.
        """
        return await self._patiently(lambda: self._read_commit(file))

    async def _read_commit(self, file: LogFile) -> CommitBody:
        await self._require_finished(file)
        if file.size_bytes > LARGE_COMMIT_BYTES:
            scan = self._begin_scan(file)
            async for chunk in self.chunks(file):
                await asyncio.to_thread(scan.feed, chunk)
            return CommitBody(file=file, commit=scan.finish(), body=None)
        return await self._scanned(file, await self.store.get(self.path_of(file)))

    async def _scanned(self, file: LogFile, body: bytes) -> CommitBody:
        if len(body) > SLICE_BYTES:
            return await asyncio.to_thread(self._scan, file, body)
        return self._scan(file, body)

    async def actions(
        self, found: CommitBody, start: int = 0
    ) -> AsyncIterator[tuple[list[Line], int]]:
        """Yield a commit's actions as `lines` does; a small one is not decoded again."""
        if found.lines is not None and not start:
            yield found.lines, found.commit.size_bytes
            return
        async for lines in self.lines(found.file, start, found.body):
            yield lines


def _is_like(before: LogFile | FileMeta, now: FileMeta) -> bool:
    """Return whether nobody wrote to a file: a link that goes changes only its identity."""
    return (before.size_bytes, before.mtime_ms) == (now.size_bytes, now.mtime_ms)
