"""Writes checkpoints and their hint, compactions and checksums, concurrently with other writers.

Nothing is overwritten: every file is published atomically, under an unused name, after everything
it references. If another writer published the same file first, that file is used. Protocol
decisions are in `protocol`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tailerd.clock import Clock, SystemClock
from tailerd.errors import (
    BugError,
    CorruptLogError,
    FileExistsAlreadyError,
    FileMissingError,
    LogChangedError,
    MissingVersionError,
)
from tailerd.formats.delta.log.checkpoint_basis import check_readable_checkpoint, choose_basis
from tailerd.formats.delta.log.checkpoint_output import CheckpointOutput, WrittenRows
from tailerd.formats.delta.log.checkpoint_source import CheckpointSource
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.publication import publish, withdraw
from tailerd.formats.delta.log.sidecar_writer import SidecarWriter
from tailerd.formats.delta.log.v2_manifest import ManifestKind
from tailerd.formats.delta.protocol.actions import CommitInfo
from tailerd.formats.delta.protocol.checkpoint_columns import (
    CheckpointColumns,
    StateAction,
    collect_applications,
)
from tailerd.formats.delta.protocol.last_checkpoint import (
    last_checkpoint_body,
    parse_last_checkpoint,
)
from tailerd.formats.delta.protocol.log_compaction import compact, matches_commits
from tailerd.formats.delta.protocol.log_path import (
    LAST_CHECKPOINT,
    LogFile,
    checkpoint_name,
    checksum_name,
    commit_name,
    compaction_name,
    parse_log_path,
)
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState
from tailerd.formats.delta.protocol.version_checksum import checksum_body
from tailerd.formats.delta.protocol.writer_features import (
    check_maintainable,
    supports_v2_checkpoints,
)
from tailerd.storage.base import put_nondurable

Outcome = Literal["written", "already_there"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """The result of writing one checkpoint.

    Attributes:
        outcome: Whether it was written, or another writer had already written one of this version.
        files: Names of the files written, relative to `_delta_log`.
        size_bytes: Of these.
        reused_files: Sidecars referenced again.
        add_files: Live files it describes; 0 if it existed already.
        rebased: The snapshot, based on the new checkpoint; None if it existed already, or if the
            snapshot's own base is as good. The snapshot it was written from is no longer valid.
    """

    version: int
    outcome: Outcome
    files: tuple[str, ...] = ()
    size_bytes: int = 0
    reused_files: tuple[str, ...] = ()
    add_files: int = 0
    rebased: Snapshot | None = None
    is_hinted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The result of writing one file.

    Attributes:
        name: Relative to `_delta_log`.
        size_bytes: 0 if it was not written.
    """

    name: str
    outcome: Literal["written", "already_there", "nothing_to_say"]
    size_bytes: int = 0


class LogWriter:
    """Writes into one table's log.

    Args:
        reader: The table's log.
        clock: Determines which files have expired.
        new_uuid: Generates unique file names.
    """

    def __init__(
        self,
        reader: LogReader,
        *,
        clock: Clock | None = None,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.reader = reader
        self._clock: Clock = clock or SystemClock()
        self._new_uuid = new_uuid

    async def write_checkpoint(
        self, snapshot: Snapshot, *, manifest: ManifestKind = "json"
    ) -> CheckpointResult:
        """Write a checkpoint of a published version, from its snapshot with files.

        Args:
            manifest: Form of the manifest of a V2 checkpoint.

        Raises:
            UnsupportedFeatureError: The table requires an unsupported writer feature.
            MissingVersionError, FileMissingError: Commits of the snapshot are missing from the log.
            CorruptLogError: The log is damaged.
            LogChangedError: It changed meanwhile, or was replaced by that of another table.
            StorageError: A file cannot be written; nothing visible to readers is left.
        """
        basis = await choose_basis(self.reader, snapshot, self._clock.now_ms())
        if basis.existing:
            return self._lost_to(basis.existing, snapshot.version)
        source = CheckpointSource(self.reader, snapshot, basis.commits, basis.removed_after_ms)
        await source.prepare()
        others = tuple(source.others.select_for_checkpoint(basis.transactions_after_ms))
        assert basis.published is not None
        if supports_v2_checkpoints(snapshot.state):
            return await self._write_v2(source, others, basis.published, manifest)
        return await self._write_v1(source, others, basis.published)

    # ------------------------------------------------------------------ V1

    async def _write_v1(
        self, source: CheckpointSource, others: Sequence[StateAction], published: LogFile
    ) -> CheckpointResult:
        snapshot, written = source.snapshot, WrittenRows()
        file = _log_file(checkpoint_name(snapshot.version))
        path = self.reader.resolve_path(file)
        columns = CheckpointColumns(source.form, others)
        async with CheckpointOutput(self.reader.store, path, columns, written) as output:
            await output.write_others()
            async for removes in source.stored_removes(snapshot.checkpoint_files):
                await output.write_removes(removes)
            async for removes in source.new_removes():
                await output.write_removes(removes)
            async with aclosing(source.stored_adds(snapshot.checkpoint_files)) as stored:
                async for adds in stored:
                    await output.write_adds(adds)
            async for new in source.new_adds():
                await output.write_adds(new)
            check_complete(snapshot, output.adds)
            try:
                await publish(self.reader, path, published, output.finish)
            except FileExistsAlreadyError:
                return self._lost_to((file,), snapshot.version)
            rows, size_bytes = output.rows, output.size_bytes
        is_hinted = await self.write_hint(snapshot.version, rows, size_bytes, output.adds)
        return CheckpointResult(
            version=snapshot.version,
            outcome="written",
            files=(file.name,),
            size_bytes=size_bytes,
            add_files=output.adds,
            rebased=snapshot.rebase_on(
                ((file, 0),), written.keys(), written.rows(), collect_applications(others)
            ),
            is_hinted=is_hinted,
        )

    def _lost_to(self, files: tuple[LogFile, ...], version: int) -> CheckpointResult:
        """Accept the checkpoint that another writer published, if it is valid."""
        check_readable_checkpoint(self.reader, files)
        return CheckpointResult(version=version, outcome="already_there")

    # ------------------------------------------------------------------ V2

    async def _write_v2(
        self,
        source: CheckpointSource,
        others: Sequence[StateAction],
        published: LogFile,
        kind: ManifestKind,
    ) -> CheckpointResult:
        snapshot = source.snapshot
        sidecars = SidecarWriter(source, self.reader, self._clock, self._new_uuid)
        await sidecars.write()
        try:
            check_complete(snapshot, sidecars.adds)
        except LogChangedError as error:
            await sidecars.withdraw(error)
            raise
        manifest = await sidecars.write_manifest(others, published, kind)
        is_hinted = await self.write_hint(
            snapshot.version,
            manifest.actions + sidecars.adds + sidecars.removes,
            manifest.size_bytes + sidecars.total_bytes,
            sidecars.adds,
        )
        return CheckpointResult(
            version=snapshot.version,
            outcome="written",
            files=(manifest.name, *(file.name for file in sidecars.new_files)),
            size_bytes=manifest.size_bytes + sum(file.size_bytes for file in sidecars.new_files),
            reused_files=tuple(part.file.name for part in sidecars.plan.reused),
            add_files=sidecars.adds,
            rebased=sidecars.rebase_snapshot(
                _log_file(manifest.name, manifest.size_bytes), collect_applications(others)
            ),
            is_hinted=is_hinted,
        )

    # ------------------------------------------------------------------ compactions, checksums

    async def write_compaction(self, state: TableState, start: int, end: int) -> FileResult:
        """Write the compaction of the commits `start` to `end`, and verify it by reading it back.

        Args:
            state: Of a version from `end` on.

        Raises:
            UnsupportedFeatureError: As `write_checkpoint`.
            MissingVersionError: A commit is missing.
            CorruptLogError: A commit is damaged; or the verification failed, and the compaction is
                withdrawn.
            LogChangedError: Another table replaced this one meanwhile.
            StorageError: It cannot be written.
        """
        check_maintainable(state)
        if end <= start:
            raise BugError(f"{start} to {end} is not a range of commits.")
        name = compaction_name(start, end)
        # Looked up before anything is read, so that a later replacement of the table is detected.
        published = await self.reader.commit_file(end)
        if published is None:
            raise self._explain_missing(start, end, f"{commit_name(end)} does not exist.")
        names = [commit_name(version) for version in range(start, end + 1)]
        try:
            bodies = await self.reader.store.get_many(
                [f"{self.reader.path}/{commit}" for commit in names]
            )
        except FileMissingError as error:
            raise self._explain_missing(start, end, str(error)) from error
        named = list(zip(names, bodies, strict=True))
        body = await asyncio.to_thread(compact, named, self.reader.url)
        if not body:
            return FileResult(name=name, outcome="nothing_to_say")
        return await self._put_compaction(name, body, named, published)

    def _explain_missing(self, start: int, end: int, reason: str) -> MissingVersionError:
        return MissingVersionError(
            f"The commits {start} to {end} cannot be compacted, because one is missing from the"
            f" log: {reason}"
        )

    async def _put_compaction(
        self, name: str, body: bytes, commits: Sequence[tuple[str, bytes]], published: LogFile
    ) -> FileResult:
        path = f"{self.reader.path}/{name}"
        put = partial(self.reader.store.put, path, body, if_absent=True)
        try:
            await publish(self.reader, path, published, put)
        except FileExistsAlreadyError:
            return FileResult(name=name, outcome="already_there")
        try:
            found = await self.reader.store.get(path)
            is_right = found == body and await asyncio.to_thread(
                matches_commits, found, commits, self.reader.url
            )
            if not is_right:
                raise CorruptLogError(
                    f"{name} was read again and does not match its commits.",
                    remedy="The storage may be failing, or a commit is illegal: inspect the range.",
                )
        except BaseException as error:
            await withdraw(self.reader, path, reason=error)
            raise
        return FileResult(name=name, outcome="written", size_bytes=len(body))

    async def write_checksum(
        self,
        snapshot: Snapshot,
        info: CommitInfo | None = None,
        *,
        published: LogFile | None = None,
    ) -> FileResult:
        """Write the checksum of a published version; an existing one is kept.

        Args:
            snapshot: Of that version, with its files.
            info: Provenance of its commit; read from the log if not given.
            published: The commit the snapshot was made from; looked up if not given.

        Raises:
            UnsupportedFeatureError, LogChangedError, StorageError: As `write_checkpoint`.
            MissingVersionError: The commit is missing.
        """
        check_maintainable(snapshot.state)
        name = checksum_name(snapshot.version)
        path = f"{self.reader.path}/{name}"
        published = published or await self.reader.commit_file(snapshot.version)
        if published is None:
            raise MissingVersionError(
                f"The commit of version {snapshot.version} is not in the log of {self.reader.url},"
                " so no checksum of it may be written."
            )
        if info is None:
            info = (await self.reader.read_commit(published)).commit.info
        body = checksum_body(snapshot, info)
        # Without fsync: readers ignore a checksum damaged by a power failure, because it is not
        # valid JSON, and the next version gets its own.
        put = partial(put_nondurable, self.reader.store, path, body)
        try:
            await publish(self.reader, path, published, put)
        except FileExistsAlreadyError:
            return FileResult(name=name, outcome="already_there")
        return FileResult(name=name, outcome="written", size_bytes=len(body))

    # ------------------------------------------------------------------ the hint

    async def write_hint(self, version: int, actions: int, size_bytes: int, adds: int) -> bool:
        """Write `_last_checkpoint` if it moves forward; return whether it was written.

        Args:
            actions, size_bytes: Of the whole checkpoint.
            adds: Live files it describes.
        """
        path = f"{self.reader.path}/{LAST_CHECKPOINT}"
        try:
            known = parse_last_checkpoint(await self.reader.store.get(path))
        except FileMissingError:
            known = None
        if known is not None and known.version >= version:
            listing = await self.reader.list_log(known.version)
            # Keep a newer hint only if its checkpoint exists; otherwise readers miss this one.
            if known.version in listing.checkpoints:
                return False
        body = last_checkpoint_body(
            version=version, size=actions, sizeInBytes=size_bytes, numOfAddFiles=adds
        )
        await self.reader.store.put(path, body)
        return True


def check_complete(snapshot: Snapshot, adds: int) -> None:
    """Compare the number of files found with the index.

    Raises:
        LogChangedError: They differ.
    """
    if adds != snapshot.num_files:
        raise LogChangedError(
            f"Version {snapshot.version} has {snapshot.num_files} files, and {adds} were found"
            " again for its checkpoint: the log changed while it was read.",
            remedy="Run the command again.",
        )


def _log_file(name: str, size_bytes: int = 0) -> LogFile:
    file = parse_log_path(name, size_bytes)
    assert file is not None, name
    return file
