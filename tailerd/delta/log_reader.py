"""Lists and fetches log files and drives the replay. Decides nothing the protocol decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from tailerd.delta.parquet_rows import CheckpointFile
from tailerd.delta.protocol.actions import Line
from tailerd.delta.protocol.checkpoint import KEY_COLUMNS, OTHER_ACTIONS, PROBES
from tailerd.delta.protocol.commit_file import SLICE_BYTES, Commit, CommitScan, LineDecoder, slices
from tailerd.delta.protocol.commit_timestamp import LOOK_BACK_VERSIONS
from tailerd.delta.protocol.last_checkpoint import parse_last_checkpoint
from tailerd.delta.protocol.log_path import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    LogFile,
    checksum_name,
    commit_name,
    first_name_of,
    parse_log_path,
)
from tailerd.delta.protocol.log_replay import LogReplay
from tailerd.delta.protocol.log_segment import LogListing, LogSegment
from tailerd.delta.protocol.snapshot import Snapshot
from tailerd.delta.protocol.version_checksum import parse_version_checksum, validate_checksum
from tailerd.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    FileMissingError,
    TableError,
    TornCommitError,
)
from tailerd.storage.base import ObjectStore
from tailerd.storage.locate import locate, url_of

LARGE_COMMIT_BYTES = 16 * 1024 * 1024
"""Commits above this are never held in memory whole."""
LINES_SLICE_BYTES = 1024 * 1024
"""A large commit is taken up again where the last step ended, as precisely as this."""
_GROUP_FILES = 1024
_GROUP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """A commit that was found, scanned once.

    Attributes:
        body: Its bytes, or None when it is too large to be held.
    """

    file: LogFile
    commit: Commit
    body: bytes | None


class LogReader:
    """Reads one table's log.

    Args:
        store, root: Where the table is: a store and the table's path in it.
        torn_wait_seconds: How long a torn newest commit is given to become whole.
        on_mismatch: Told of a version checksum that differs from the replay; without it, that is
            an error. Replay follows the protocol and checksums are only a second opinion, so
            commands tell their user and go on.
        with_rows: Whether commits that are read tell how many rows their files have.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        *,
        torn_wait_seconds: float = 2.0,
        on_mismatch: Callable[[ChecksumMismatchError], None] | None = None,
        with_rows: bool = False,
    ) -> None:
        self.store = store
        self.root = root.rstrip("/")
        self.url = url_of(store, self.root)
        self._folder = f"{self.root}/{LOG_FOLDER}"
        self._torn_wait_seconds = torn_wait_seconds
        self._on_mismatch = on_mismatch
        self._with_rows = with_rows

    @classmethod
    def at(
        cls, table: str, *, on_mismatch: Callable[[ChecksumMismatchError], None] | None = None
    ) -> LogReader:
        """Return the reader of the table at a path or URL.

        Raises:
            ConfigError: No store serves this place.
        """
        return cls(*locate(table), on_mismatch=on_mismatch)

    async def list_log(self, start_version: int = 0) -> LogListing:
        """List the log from a version on."""
        # The character before "/" sorts before every digit, so `start_version` itself is listed.
        after = first_name_of(start_version)[:-1] if start_version else ""
        files = []
        async for meta in self.store.list_from(self._folder, after):
            file = parse_log_path(meta.name, meta.size_bytes, meta.mtime_ms)
            if file is not None and file.version >= start_version:
                files.append(file)
        return LogListing.of(files)

    async def open(self, version: int | None = None, *, with_files: bool = True) -> Snapshot:
        """Rebuild a version (None: the newest) from as little of the log as possible.

        Damaged or incomplete checkpoints are passed over as long as the rest of the log suffices.

        Args:
            with_files: Whether to index live files and validate the version checksum.

        Raises:
            NotATableError, MissingVersionError: The version is not there.
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
        listing = await self._list_for(version)
        excluded: set[str] = set()
        damage: CorruptLogError | None = None
        while True:
            try:
                segment = LogSegment.for_version(
                    listing, version, place=self.url, excluded=frozenset(excluded)
                )
            except TableError as error:
                raise damage or error from error
            try:
                snapshot = await self._replay(segment, with_files)
            except _DamagedCheckpointError as error:
                damage = error.damage
                excluded.update(file.name for file in segment.checkpoint)
                listing = await self.list_log()
            except FileMissingError:
                # Cleanup removes commits while they are read: what is there now tells more.
                before, listing = listing, await self._list_for(version)
                if listing.commits == before.commits:
                    raise
            else:
                snapshot.state.check_log()
                return snapshot, segment

    async def _list_for(self, version: int | None) -> LogListing:
        start = 0
        try:
            body = await self.store.get(f"{self._folder}/{LAST_CHECKPOINT}")
            hint = parse_last_checkpoint(body)
        except FileMissingError:
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
        replay = LogReplay(segment, with_files=with_files, root_url=self.url)
        await self._feed_checkpoint(replay)
        await self._feed_commits(replay)
        snapshot = replay.result()
        if with_files and segment.checksum_version is not None:
            await self._validate(snapshot)
        return snapshot

    async def _validate(self, snapshot: Snapshot) -> None:
        try:
            body = await self.store.get(f"{self._folder}/{checksum_name(snapshot.version)}")
        except FileMissingError:
            return
        checksum = parse_version_checksum(body)
        if checksum is None:
            return
        try:
            validate_checksum(snapshot, checksum)
        except ChecksumMismatchError as error:
            if self._on_mismatch is None:
                raise
            self._on_mismatch(error)

    async def _feed_checkpoint(self, replay: LogReplay) -> None:
        """Feed manifest, parts and sidecars; each is decoded in a worker thread."""
        try:
            while replay.is_checkpoint_open:
                for file in replay.next_files(_GROUP_FILES):
                    if file.is_json:
                        body = await self.store.get(self.path_of(file))
                        await asyncio.to_thread(replay.feed_lines, file, slices(body))
                    else:
                        await asyncio.to_thread(self._feed_parquet, replay, file)
        except (CorruptLogError, FileMissingError) as error:
            raise _DamagedCheckpointError(_as_damage(error, replay.segment)) from error

    def _feed_parquet(self, replay: LogReplay, file: LogFile) -> None:
        rows = CheckpointFile(self.store.open_input(self.path_of(file)), file.name)
        try:
            actions = rows.rows_with(OTHER_ACTIONS, PROBES.values())
            replay.feed_rows(file, actions, rows.rows(KEY_COLUMNS) if replay.with_files else ())
        finally:
            rows.close()

    async def _feed_commits(self, replay: LogReplay) -> None:
        """Feed commits in groups; while one group is replayed the next is fetched."""
        ahead = self._fetch_group(replay)
        try:
            while ahead is not None:
                files, bodies = ahead[0], await ahead[1]
                ahead = self._fetch_group(replay)
                if bodies is None:
                    await self._feed_large(replay, files[0])
                else:
                    await asyncio.to_thread(_feed_group, replay, files, bodies)
        finally:
            if ahead is not None:
                ahead[1].cancel()

    def _fetch_group(
        self, replay: LogReplay
    ) -> tuple[list[LogFile], asyncio.Task[list[bytes] | None]] | None:
        files = replay.next_files(_GROUP_FILES, _GROUP_BYTES)
        if not files:
            return None
        return files, asyncio.create_task(self._fetch(files))

    async def _fetch(self, files: list[LogFile]) -> list[bytes] | None:
        if files[0].size_bytes > LARGE_COMMIT_BYTES:
            return None
        return await self.store.get_many([self.path_of(file) for file in files])

    async def _feed_large(self, replay: LogReplay, file: LogFile) -> None:
        scan = replay.begin_commit(file)
        async for chunk in self.chunks(file):
            await asyncio.to_thread(scan.feed, chunk)
        await asyncio.to_thread(replay.end_commit, file, scan)

    def path_of(self, file: LogFile) -> str:
        """Return a log file's path in the store."""
        return f"{self._folder}/{file.name}"

    async def chunks(
        self, file: LogFile, start: int = 0, slice_bytes: int = SLICE_BYTES
    ) -> AsyncIterator[bytes]:
        """Yield a file's bytes from `start` on, in slices of bounded size."""
        while True:
            chunk = await self.store.get(self.path_of(file), start, slice_bytes)
            if chunk:
                yield chunk
            if len(chunk) < slice_bytes:
                return
            start += len(chunk)

    async def lines(
        self, file: LogFile, start: int = 0, body: bytes | None = None
    ) -> AsyncIterator[tuple[list[Line], int]]:
        """Yield a commit's actions, slice by slice, each with the byte after its last line.

        Args:
            start: Byte to start at, the beginning of a line.
            body: The whole file where it is at hand.

        Raises:
            CorruptLogError, TornCommitError: The file is damaged.
        """
        decoder = LineDecoder(file.name)
        if body is None:
            async for chunk in self.chunks(file, start, LINES_SLICE_BYTES):
                yield decoder.feed(chunk), start + decoder.bytes_done
        else:
            for chunk in slices(body[start:] if start else body):
                yield decoder.feed(chunk), start + decoder.bytes_done
        if decoder.has_rest:
            yield decoder.finish(), start + decoder.bytes_done

    async def commit_file(self, version: int) -> LogFile | None:
        """Look up one commit by its name: the cheapest way to learn of a new version.

        Returns:
            The file with its size and time, or None when there is no such commit yet.
        """
        name = commit_name(version)
        try:
            meta = await self.store.head(f"{self._folder}/{name}")
        except FileMissingError:
            return None
        return parse_log_path(name, meta.size_bytes, meta.mtime_ms)

    async def read_commits(self, files: Sequence[LogFile]) -> list[CommitBody]:
        """Fetch and scan several commits that are small enough to be held.

        Raises:
            TornCommitError, CorruptLogError: One is damaged.
            FileMissingError: One is gone.
        """
        bodies = await self.store.get_many([self.path_of(file) for file in files])
        return await asyncio.to_thread(self._scan_all, files, bodies)

    def _scan_all(self, files: Sequence[LogFile], bodies: Sequence[bytes]) -> list[CommitBody]:
        found = []
        for file, body in zip(files, bodies, strict=True):
            commit = _scan(self._begin_scan(file), body)
            found.append(CommitBody(file=file, commit=commit, body=body))
        return found

    def _begin_scan(self, file: LogFile) -> CommitScan:
        return CommitScan(file.version, file.name, self.url, with_rows=self._with_rows)

    async def read_commit(self, file: LogFile) -> CommitBody:
        """Fetch and scan one commit; a torn one is given time to become whole.

        Raises:
            TornCommitError: It stays incomplete.
            CorruptLogError: It is damaged.
            FileMissingError: It is gone.
        """
        pause = 0.02
        deadline = asyncio.get_running_loop().time() + self._torn_wait_seconds
        while True:
            try:
                return await self._read_commit(file)
            except TornCommitError as error:
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise TornCommitError(
                        error.message,
                        hint="If no writer is at work, remove the file: it was never committed.",
                    ) from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.5)

    async def _read_commit(self, file: LogFile) -> CommitBody:
        scan = self._begin_scan(file)
        if file.size_bytes > LARGE_COMMIT_BYTES:
            async for chunk in self.chunks(file):
                await asyncio.to_thread(scan.feed, chunk)
            return CommitBody(file=file, commit=scan.finish(), body=None)
        body = await self.store.get(self.path_of(file))
        if len(body) > SLICE_BYTES:
            commit = await asyncio.to_thread(_scan, scan, body)
        else:
            commit = _scan(scan, body)
        return CommitBody(file=file, commit=commit, body=body)


class _DamagedCheckpointError(Exception):
    """A checkpoint could not be used; another way may exist."""

    def __init__(self, damage: CorruptLogError) -> None:
        super().__init__(str(damage))
        self.damage = damage


def _as_damage(error: Exception, segment: LogSegment) -> CorruptLogError:
    if isinstance(error, CorruptLogError):
        return error
    return CorruptLogError(
        f"The checkpoint of version {segment.checkpoint_version} lacks a file: {error}",
        hint="No other checkpoint and no complete log is there: restore the file from a backup.",
    )


def _scan(scan: CommitScan, body: bytes) -> Commit:
    for chunk in slices(body):
        scan.feed(chunk)
    return scan.finish()


def _feed_group(replay: LogReplay, files: Sequence[LogFile], bodies: Sequence[bytes]) -> None:
    for file, body in zip(files, bodies, strict=True):
        replay.feed_lines(file, slices(body))
