"""Writes the sidecars and the manifest of a V2 checkpoint; reuses sidecars that are still valid."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from tailerd.clock import Clock
from tailerd.formats.delta.log.checkpoint_entries import remove_keys
from tailerd.formats.delta.log.checkpoint_output import CheckpointOutput, WrittenRows
from tailerd.formats.delta.log.checkpoint_source import (
    CheckpointSource,
    CopiedGroup,
    FileActions,
)
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.publication import withdraw
from tailerd.formats.delta.log.v2_manifest import (
    Manifest,
    ManifestContents,
    ManifestKind,
    withdraw_sidecars,
    write_manifest,
)
from tailerd.formats.delta.protocol.checkpoint_columns import CheckpointColumns, StateAction
from tailerd.formats.delta.protocol.file_index import VERSION_FLAG
from tailerd.formats.delta.protocol.log_path import (
    SIDECAR_FOLDER,
    LogFile,
    LogFileKind,
)
from tailerd.formats.delta.protocol.sidecar import SIDECAR_FILES, SidecarPlan, StoredPart
from tailerd.formats.delta.protocol.snapshot import Snapshot

MAX_UNUSED_ROWS = 1 << 20


class SidecarWriter:
    """One V2 checkpoint being written: `write`, then `write_manifest`.

    Attributes:
        plan: Which sidecars are reused; set by `write`.
        new_files: Sidecars written.
        adds, removes: File actions of the checkpoint, in reused and new sidecars.
    """

    def __init__(
        self,
        source: CheckpointSource,
        log: LogFolder,
        clock: Clock,
        new_uuid: Callable[[], uuid.UUID],
    ) -> None:
        self.plan = SidecarPlan(reused=(), rewritten=())
        self.new_files: list[LogFile] = []
        self.adds = self.removes = 0
        self._source = source
        self._log = log
        self._clock = clock
        self._new_uuid = new_uuid
        self._written = WrittenRows()
        self._first_rows: list[tuple[LogFile, int]] = []
        self._next_row = 0
        self._open: CheckpointOutput | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all sidecars, reused ones included."""
        reused = sum(part.file.size_bytes for part in self.plan.reused)
        return reused + sum(file.size_bytes for file in self.new_files)

    async def write(self) -> None:
        """Decide which sidecars are reused, and write the others.

        Raises:
            CorruptLogError, FileMissingError: The previous checkpoint is damaged.
            LogCleanedUpError: Another writer replaced it.
            StorageError: A sidecar cannot be written.
        """
        source = self._source
        self.plan = SidecarPlan.decide(await asyncio.to_thread(self._stored_parts))
        self._next_row = self.plan.next_row
        self.adds = sum(part.adds or 0 for part in self.plan.reused)
        self.removes = sum(part.removes or 0 for part in self.plan.reused)
        rewritten = [(part.file, part.first_row) for part in self.plan.rewritten]
        try:
            # Removes have sidecars of their own, so that expiring ones leave those of files valid.
            await self._write_removes(source.stored_removes(rewritten))
            await self._write_removes(source.new_removes())
            await self._close()
            async with aclosing(source.stored_adds(rewritten)) as stored:
                await self._write_adds(stored)
            await self._write_adds(source.new_adds())
            await self._close()
        except BaseException as error:
            await self.withdraw(error)
            raise

    async def withdraw(self, reason: BaseException) -> None:
        """Delete written sidecars: no manifest references them. `reason` as in `publication`."""
        if self._open is not None:
            await self._open.__aexit__()
            # It may exist although the response was lost.
            await withdraw(self._log, self._open.path, reason=reason)
        await withdraw_sidecars(self._log, self.new_files, reason)

    def _stored_parts(self) -> list[StoredPart]:
        rows = self._source.live_rows
        is_live = np.zeros(int(rows.max(initial=0)) + 1, np.bool_)
        is_live[rows] = True
        files = self._source.snapshot.checkpoint_files
        return [self._stored_part(file, first, is_live) for file, first in files]

    def _stored_part(
        self, file: LogFile, first_row: int, is_live: npt.NDArray[np.bool_]
    ) -> StoredPart:
        if file.kind is not LogFileKind.SIDECAR:
            return StoredPart(
                file=file, first_row=first_row, rows=0, adds=None, removes=None, live_adds=0
            )
        with self._source.open_file(file) as rows:
            adds, removes = rows.count_values("add.path"), rows.count_values("remove.path")
            live_adds = int(is_live[first_row : first_row + rows.num_rows].sum())
            is_sound = True
            if removes and adds == live_adds:
                counting = expired = 0
                for batch in rows.rows_with(("remove",), ("remove.path",)):
                    column = batch.column("remove").drop_null()
                    keys = remove_keys(column, self._log.url)
                    counting += int(self._source.still_count(keys).sum())
                    expired += int(self._source.select_expired(column).sum())
                is_sound = counting == removes and expired * 2 <= removes
            return StoredPart(
                file=file,
                first_row=first_row,
                rows=rows.num_rows,
                adds=adds,
                removes=removes,
                live_adds=live_adds,
                has_sound_removes=is_sound,
            )

    async def _write_removes(self, found: AsyncIterator[FileActions]) -> None:
        async for removes in found:
            await self._sidecar().write_removes(removes)
            await self._close_if_full()

    async def _write_adds(self, found: AsyncIterator[FileActions | CopiedGroup]) -> None:
        async for adds in found:
            await self._sidecar().write_adds(adds)
            await self._close_if_full()

    def _sidecar(self) -> CheckpointOutput:
        """Return the sidecar that is being written."""
        if self._open is None:
            self._open = self._new_sidecar()
        return self._open

    async def _close_if_full(self) -> None:
        if self._open is not None and self._open.rows >= SIDECAR_FILES:
            await self._close()

    def _new_sidecar(self) -> CheckpointOutput:
        path = f"{self._log.path}/{SIDECAR_FOLDER}/{self._new_uuid()}.parquet"
        columns = CheckpointColumns(self._source.form, None)
        return CheckpointOutput(self._log.store, path, columns, self._written, self._next_row)

    async def _close(self) -> None:
        output = self._open
        if output is None:
            return
        await output.finish()
        self._open = None
        version = self._source.snapshot.version
        file = LogFile(
            name=f"{SIDECAR_FOLDER}/{output.path.rpartition('/')[2]}",
            kind=LogFileKind.SIDECAR,
            version=version,
            end_version=version,
            size_bytes=output.size_bytes,
            mtime_ms=self._clock.now_ms(),
        )
        self.new_files.append(file)
        self._first_rows.append((file, self._next_row))
        self._next_row += output.rows
        self.adds += output.adds
        self.removes += output.removes

    async def write_manifest(
        self, others: Iterable[StateAction], published: LogFile, kind: ManifestKind
    ) -> Manifest:
        """Write the manifest.

        Raises:
            LogChangedError: As `v2_manifest.write_manifest`.
            StorageError: It cannot be written.
        """
        contents = ManifestContents(
            version=self._source.snapshot.version,
            published=published,
            others=others,
            reused=[part.file for part in self.plan.reused],
            new=self.new_files,
        )
        return await write_manifest(
            self._log, contents, self._new_uuid, kind=kind, form=self._source.form
        )

    def rebase_snapshot(self, manifest: LogFile, applications: Collection[str]) -> Snapshot | None:
        """Return the snapshot based on this checkpoint.

        None if too many row numbers belong to sidecars no longer used: opening a snapshot numbers
        rows from the start.
        """
        if self._next_row >= min(VERSION_FLAG, 8 * self.adds + MAX_UNUSED_ROWS):
            return None
        reused = tuple((part.file, part.first_row) for part in self.plan.reused)
        # The manifest has no rows of files; any row number outside the others' is valid.
        files = ((manifest, self._next_row), *reused, *self._first_rows)
        keys, rows = self._written.keys(), self._written.rows()
        return self._source.snapshot.rebase_on(files, keys, rows, applications)
