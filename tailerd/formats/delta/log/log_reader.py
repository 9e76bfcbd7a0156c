"""Opens versions of a table and reads its commits. Protocol decisions are in `protocol`."""

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
from tailerd.storage.table_location import locate_table

T = TypeVar("T")

MAX_HINT_BYTES = 1024 * 1024
"""Writers keep `_last_checkpoint` below a few kilobytes; a larger one is ignored."""
MAX_CHECKSUM_BYTES = 16 * 1024 * 1024
"""Version checksums may contain the schema and some files; a larger one is ignored."""

GAP_PATIENCE_SECONDS = 0.5
"""Some file systems and stores list a file later than one written after it."""
GAP_LISTINGS = 5
"""Maximum number of repeated listings, each for another missing file: results may alternate."""

DECODED_ONCE_BYTES = 1024 * 1024
"""The lines of a commit up to this size are kept decoded, from reading it to planning its tasks."""

STILL_SECONDS = 1.0
"""How long a commit must be unchanged if nothing else shows that its writer has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """A commit that exists, scanned once.

    Attributes:
        body: Its bytes; None if it is too large for memory.
        lines: Its lines, decoded, unless it is larger than `DECODED_ONCE_BYTES`.
    """

    file: LogFile
    commit: Commit
    body: bytes | None
    lines: list[Line] | None = None

    @property
    def held_bytes(self) -> int:
        """Approximate memory of its body and lines; a decoded line takes its length again."""
        return len(self.body or b"") * (1 if self.lines is None else 2)


def _all_that_is_left(damage: TableError | None) -> TableError | None:
    """Add to the error of a damaged checkpoint that the version cannot be read without it."""
    if damage is None or isinstance(damage, TooLargeError):
        return damage
    lost = "No older checkpoint and no complete run of commits rebuilds this version."
    return damage.restate(f"{damage.message} {lost}")


class LogReader(LogFolder):
    """Reads one table's log.

    Args:
        store, root: Where the table is: a store and the table's path in it.
        torn_wait_seconds: How long to wait for a torn newest commit to be completed.
        on_mismatch: Called with the error for a version checksum that differs from the replay, and
            for skipped damaged checkpoints. Without it, a checksum mismatch is raised. Replay
            follows the protocol and checksums are only a cross-check, so commands warn and
            continue.
        with_rows: Whether to count the rows of files in commits.
        memory_bytes: The configured `memory`, which reading a file must not exceed.

    Attributes:
        finished: The newest commit known to be complete, for stores that show unfinished files.
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
            allowed: Positions that symbolic links in the log may lead to.
            stores: By default configured by the environment.

        Raises:
            ConfigError: No store serves this location.
        """
        location = locate_table(table, allowed, stores=stores)
        return cls(location.store, location.root, on_mismatch=on_mismatch)

    async def open(self, version: int | None = None, *, with_files: bool = True) -> Snapshot:
        """Rebuild a version (None: the newest) from as little of the log as possible.

        Damaged or incomplete checkpoints are skipped if the rest of the log is sufficient.

        Args:
            with_files: Whether to index live files and validate the version checksum.

        Raises:
            NotATableError, MissingVersionError: The version does not exist. A gap in the log is
                confirmed by a second listing.
            TornCommitError, CorruptLogError, ChecksumMismatchError: The log is damaged.
            UnsupportedFeatureError: The table requires an unsupported feature.
        """
        snapshot, _ = await self.open_listed(version, with_files=with_files)
        snapshot.state.check_rows()
        if with_files:
            snapshot.check_paths()
        return snapshot

    async def open_listed(
        self, version: int | None = None, *, with_files: bool = True
    ) -> tuple[Snapshot, LogSegment]:
        """Rebuild a version as `open` does; also return the log segment it was rebuilt from.

        Only log features are checked: the caller checks whether rows may be read.
        """
        return await self._patiently(lambda: self._open_listed(version, with_files))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry while a commit is torn: its writer may not have finished.

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
                        remedy=error.raw_remedy
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
                    listing, version, location=self.url, excluded=frozenset(excluded)
                )
            except TableError as error:
                lacking = listing.gap(version, frozenset(excluded))
                if lacking is None or lacking in awaited[-1:] or len(awaited) == GAP_LISTINGS:
                    raise _all_that_is_left(damage) or error from error
                # A folder listed during writes may show a file but not the one before it.
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
                # Cleanup may remove commits while they are read: list the log again.
                before, listing = listing, await self._list_again(version, excluded)
                if listing == before:
                    raise
            else:
                snapshot.state.check_log()
                if damage is not None:
                    self._report_skipped(skipped, damage)
                return snapshot, segment

    def _report_skipped(self, version: int | None, damage: TableError) -> None:
        """Report a damaged checkpoint that was skipped; each once."""
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
        # Without the checkpoint of the hint, earlier files are needed.
        return await (self.list_log() if excluded else self._list_for(version))

    async def _list_for(self, version: int | None) -> LogListing:
        start = 0
        try:
            body = await self.small_body(LAST_CHECKPOINT, MAX_HINT_BYTES)
            hint = None if body is None else parse_last_checkpoint(body)
        except (FileMissingError, NotAFileError):
            # The hint only saves time, so an unreadable one is ignored.
            hint = None
        if hint is not None and (version is None or hint.version <= version):
            start = max(0, hint.version - LOOK_BACK_VERSIONS)
        listing = await self.list_log(start)
        usable = [v for v in listing.checkpoints if version is None or v <= version]
        if start and not usable:
            # The hint named no checkpoint, or one with missing parts.
            return await self.list_log()
        return listing

    async def _replay(self, segment: LogSegment, with_files: bool) -> Snapshot:
        snapshot = await replay_segment(self, segment, with_files=with_files)
        if with_files and segment.checksum_version is not None:
            await self._validate(snapshot)
        return snapshot

    async def _validate(self, snapshot: Snapshot) -> None:
        try:
            body = await self.small_body(checksum_name(snapshot.version), MAX_CHECKSUM_BYTES)
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
        """Fetch and scan several commits that are small enough for memory.

        Args:
            is_newest: Whether the last of them may be the newest of the log.

        Raises:
            TornCommitError, CorruptLogError: One is damaged.
            FileMissingError: One is missing.
        """
        if is_newest:
            await self._require_finished(files[-1])
        bodies = await self.store.get_many([self.resolve_path(file) for file in files])
        return await asyncio.to_thread(self._scan_all, files, bodies)

    def _scan_all(self, files: Sequence[LogFile], bodies: Sequence[bytes]) -> list[CommitBody]:
        return [self._scan(*each) for each in zip(files, bodies, strict=True)]

    def _scan(self, file: LogFile, body: bytes) -> CommitBody:
        scan = self._begin_scan(file, with_lines=len(body) <= DECODED_ONCE_BYTES)
        commit = scan.whole(body)
        return CommitBody(file=file, commit=commit, body=body, lines=scan.lines)

    def _begin_scan(self, file: LogFile, *, with_lines: bool = False) -> CommitScan:
        return CommitScan(
            file.version,
            file.name,
            self.url,
            with_rows=self._with_rows,
            with_lines=with_lines,
            memory_bytes=self.memory_bytes,
        )

    async def find_commit(self, version: int) -> CommitBody | None:
        """Request a commit by its name: one request, whether or not it exists, unless it is large.

        Returns:
            The commit; None if the version does not exist yet.

        Raises:
            TornCommitError, CorruptLogError: It is damaged.
            FileMissingError: It was removed while it was read.
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
        return await self._scan_body(file, body)

    async def _require_finished(self, file: LogFile, *, is_read: bool = False) -> None:
        """Make sure that the writer of a commit, which may be the newest, has finished.

        A complete last line proves nothing. Older commits need no check: writers that follow the
        protocol start a version only after reading the complete one before.

        Case A: the store shows files only when complete, or this one is known to be complete.
        Case B: it is being written.
        Case C: unknown: either the kernel reports that it is finished, or two checks some time
            apart must find the same. The file's age is not used, because the clock of a file
            server may differ from the local one.

        Args:
            is_read: Whether it was read before, so that it must be unchanged since.

        Raises:
            TornCommitError: Its writer has not finished, as far as is known.
        """
        if self._unfinished is None or file == self.finished:  # Case A
            return
        path = self.resolve_path(file)
        # A missing one was cleaned up, so it is not the newest.
        with suppress(FileMissingError):
            now, is_finished = await self._unfinished.stat_finished(path)
            if is_finished is None:  # Case C
                is_finished = await self._unfinished.wait_finished(path, STILL_SECONDS)
                before, now = now, await self.store.head(path)
                is_finished = is_finished or _is_like(before, now)
            if not is_finished or (is_read and not _is_like(file, now)):  # Case B
                raise TornCommitError(
                    f"{file.name} is still being written: it is incomplete until its writer has"
                    " closed it.",
                    remedy="Wait for the writer; one that creates commits atomically, by rename or"
                    " by put-if-absent, avoids this wait.",
                )
            self.finished = commit_log_file(
                file.version, now.size_bytes, now.mtime_ms, now.identity
            )

    async def read_commit(self, file: LogFile) -> CommitBody:
        """Fetch and scan one commit; wait for a torn one to be completed.

        Raises:
            TornCommitError: It stays incomplete.
            CorruptLogError: It is damaged.
            FileMissingError: It is missing.
        """
        return await self._patiently(lambda: self._read_commit(file))

    async def _read_commit(self, file: LogFile) -> CommitBody:
        await self._require_finished(file)
        if file.size_bytes > LARGE_COMMIT_BYTES:
            scan = self._begin_scan(file)
            async for chunk in self.chunks(file):
                await asyncio.to_thread(scan.feed, chunk)
            return CommitBody(file=file, commit=scan.finish(), body=None)
        return await self._scan_body(file, await self.store.get(self.resolve_path(file)))

    async def _scan_body(self, file: LogFile, body: bytes) -> CommitBody:
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
    """Return whether a file was not written to; removing a hard link changes only its identity."""
    return (before.size_bytes, before.mtime_ms) == (now.size_bytes, now.mtime_ms)
