"""Streams the actions of a snapshot's checkpoint from the log.

Most of a table's files are described in its last checkpoint; they are streamed in batches, and the
index shows which are still live. Later actions are read from the commits, twice: first to collect
the removes and unknown fields, then to yield the actions.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.log.checkpoint_entries import (
    check_entries,
    entries_at,
    expired_removes,
    remove_keys,
)
from tailerd.formats.delta.log.commit_lines import CommitLines
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.log.row_groups import (
    GroupCopier,
    RowGroupFile,
    encode_group,
    parse_footer,
    read_pages,
)
from tailerd.formats.delta.protocol.checkpoint import IDENTITY_COLUMNS, PROBES, plain_row
from tailerd.formats.delta.protocol.checkpoint_columns import CheckpointColumns, OtherActions
from tailerd.formats.delta.protocol.checkpoint_form import CheckpointForm, ExtraColumns
from tailerd.formats.delta.protocol.checkpoint_rows import (
    build_adds,
    build_removes,
    conformed_adds,
    conformed_removes,
)
from tailerd.formats.delta.protocol.file_index import VERSION_FLAG, Origins
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.full_actions import OTHER_KINDS, FileRow, FullLine, decode_full
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.formats.delta.protocol.tombstones import Tombstones
from tailerd.reading.parquet_footer import Chunk, read_footer

ROWS_AT_ONCE = 32_768


@dataclass(frozen=True, slots=True)
class FileActions:
    """A batch of `add` or `remove` actions, in a checkpoint's form.

    Attributes:
        column: Without nulls.
        keys: Their keys, shape (n,).
    """

    column: pa.StructArray
    keys: KeyArray


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A row group of `add` actions that are all live, to be copied unchanged.

    Attributes:
        source: The open file it is in; valid until the next item is requested.
        columns: Its columns by path.
        pages: Raw pages of columns that were read already.
        keys: As in `FileActions`, in the order of the rows.
    """

    source: BinaryIO
    columns: Mapping[str, Chunk]
    pages: Mapping[str, bytes]
    keys: KeyArray


class CheckpointSource:
    """Yields the actions of one snapshot's checkpoint; call `prepare` first.

    Args:
        log: The table's log.
        snapshot: With its files; it must not advance meanwhile.
        commits: Files of the commits since the previous checkpoint, ascending; a compaction may
            replace its range.
        removed_after_ms: Removes of files deleted at or before this time expired.

    Errors: `CorruptLogError` and `FileMissingError` if the log is damaged or changes meanwhile,
        `LogCleanedUpError` if another writer replaced the previous checkpoint.
    """

    def __init__(
        self,
        log: LogFolder,
        snapshot: Snapshot,
        commits: Sequence[LogFile],
        removed_after_ms: int,
    ) -> None:
        self.snapshot = snapshot
        self.tombstones = Tombstones()
        self.others = OtherActions()
        self.form = CheckpointForm.from_state(snapshot.state)
        self._log = log
        self._commits = commits
        self._removed_after_ms = removed_after_ms
        self._lines = CommitLines(log)
        self._commit_keys: dict[int, KeyArray] = {}
        self._live: tuple[KeyArray, Origins] = snapshot.files.live_origins()

    @property
    def live_rows(self) -> Origins:
        """Live rows of the previous checkpoint, unordered."""
        _, origins = self._live
        return origins[origins < VERSION_FLAG]

    async def prepare(self) -> None:
        """Collect everything except the live files."""
        extras = ExtraColumns()
        for file, _ in self.snapshot.checkpoint_files:
            if file.is_json:
                body = await self._log.body_slices(file)
                for lines in decode_full(file.name, body, self._log.memory_bytes):
                    self._learn(lines, extras)
            else:
                await asyncio.to_thread(self._learn_parquet, file, extras)
        for file in self._commits:
            async for lines in self._lines.read(file):
                removed = self._learn(lines, extras)
                self.tombstones.take(file.end_version, removed)
        self.others.check_is(self.snapshot)
        self.tombstones.close(self.snapshot.files)
        self.form = CheckpointForm.from_state(self.snapshot.state, extras.adds, extras.removes)
        self._find_commits()

    def _learn(self, lines: Sequence[FullLine], extras: ExtraColumns) -> list[int]:
        self.others.take_lines(lines)
        removed = []
        for line in lines:
            if line.add is not None:
                extras.take_row("add", line.add)
            elif line.remove is not None:
                extras.take_row("remove", line.remove)
                removed.append(line.remove.key(self._log.url))
        return removed

    def _learn_parquet(self, file: LogFile, extras: ExtraColumns) -> None:
        with self.open_file(file) as rows:
            for kind in ("add", "remove"):
                if (column := rows.column_type(kind)) is not None:
                    extras.take_column(kind, column)
            if file.kind is LogFileKind.SIDECAR:
                return
            probes = [PROBES[kind] for kind in OTHER_KINDS]
            for batch in rows.rows_with(OTHER_KINDS, probes):
                for kind in batch.schema.names:
                    for row in batch.column(kind).drop_null().to_pylist():
                        self.others.take(kind, plain_row(row))

    def _find_commits(self) -> None:
        keys, origins = self._live
        in_commits = origins >= VERSION_FLAG
        keys, ages = keys[in_commits], origins[in_commits] & np.uint32(VERSION_FLAG - 1)
        versions = ages.astype(np.int64) + self.snapshot.files.base_version
        order = np.argsort(versions, kind="stable")
        versions, keys = versions[order], keys[order]
        starts = np.flatnonzero(np.append(True, versions[1:] != versions[:-1])[: len(versions)])
        self._commit_keys = dict(
            zip(versions[starts].tolist(), np.split(keys, starts[1:]), strict=True)
            if len(starts)
            else ()
        )

    def open_file(self, file: LogFile) -> CheckpointFile:
        """Open a Parquet file of the previous checkpoint; blocking."""
        return CheckpointFile.open(self._log, file)

    # ------------------------------------------------------------------ adds

    async def stored_adds(
        self, files: Iterable[tuple[LogFile, int]]
    ) -> AsyncGenerator[FileActions | CopiedGroup]:
        """Yield the live files among the rows of the given files of the previous checkpoint.

        Row groups are checked while they are copied: an error may be raised after the last one, so
        nothing must be published before the end. A caller that stops early must close the
        generator.
        """
        keys, origins = self._live
        for file, first_row in files:
            if file.is_json:
                body = await self._log.body_slices(file)
                for found in self._manifest_adds(file, body):
                    yield found
                continue
            batches = self._parquet_adds(file, first_row, keys, origins)
            while (found_or_none := await asyncio.to_thread(next, batches, None)) is not None:
                try:
                    yield found_or_none
                except GeneratorExit:
                    batches.close()
                    raise

    def _parquet_adds(
        self, file: LogFile, first_row: int, keys: KeyArray, origins: Origins
    ) -> Generator[FileActions | CopiedGroup]:
        add_type = self.form.add_type
        with (
            self.open_file(file) as rows,
            GroupChecks(file.name, self._log.url, add_type) as checks,
        ):
            chosen = (origins >= first_row) & (origins < first_row + rows.num_rows)
            # Scattering them to their positions in the file avoids a sort.
            by_row = np.empty(rows.num_rows, np.uint64)
            is_live = np.zeros(rows.num_rows, np.bool_)
            found = origins[chosen].astype(np.int64) - first_row
            by_row[found] = keys[chosen]
            is_live[found] = True
            positions = np.flatnonzero(is_live)
            keys = by_row[positions]
            for run in self._runs(rows, positions, keys, checks):
                if isinstance(run, CopiedGroup):
                    yield run
                    continue
                offset = run.first_row
                for batch in rows.read_groups(run.groups, ("add",), ROWS_AT_ONCE):
                    until = offset + batch.num_rows
                    start, stop = np.searchsorted(positions, [offset, until])
                    if start < stop:
                        column = entries_at(batch.column("add"), positions[start:stop] - offset)
                        check_entries(column, keys[start:stop], file.name, self._log.url)
                        yield FileActions(conformed_adds(column, self.form), keys[start:stop])
                    offset = until
            checks.finish()

    def _runs(
        self,
        rows: CheckpointFile,
        positions: np.ndarray[tuple[int], np.dtype[np.int64]],
        keys: KeyArray,
        checks: GroupChecks,
    ) -> Iterator[_Run | CopiedGroup]:
        """Yield row groups to copy, and those between them to decode; none without a live file."""
        try:
            footer = None if rows.calendar else read_footer(rows.source, rows.name)
        except CorruptLogError:
            # Arrow may support footers that this package does not.
            footer = None
        if footer is None:
            yield _Run(list(range(rows.num_groups)), 0)
            return
        columns = CheckpointColumns(self.form, None)
        copier = GroupCopier(footer, parse_footer(encode_group(columns.blank_batch(1))))
        run, offset = _Run([], 0), 0
        for number, group in enumerate(footer.groups):
            until = offset + group.rows
            start, stop = np.searchsorted(positions, [offset, until])
            found = None
            if stop - start == group.rows and group.rows >= COPIED_ROWS:
                found = copier.select_columns(group)
            if found is not None or start == stop:
                if run.groups:
                    yield run
                if found is not None:
                    requested = keys[start:stop]
                    pages = checks.begin(rows.source, found, requested)
                    yield CopiedGroup(rows.source, found, pages, requested)
                run = _Run([], until)
            else:
                run.groups.append(number)
            offset = until
        if run.groups:
            yield run

    def _manifest_adds(self, file: LogFile, body: Iterator[bytes]) -> Iterator[FileActions]:
        keys, origins = self._live
        requested = keys[origins < VERSION_FLAG]
        for lines in decode_full(file.name, body, self._log.memory_bytes):
            rows = {line.add.key(self._log.url): line.add for line in lines if line.add}
            chosen = np.isin(np.fromiter(rows, np.uint64, len(rows)), requested) if rows else ()
            rows = {key: row for (key, row), one in zip(rows.items(), chosen, strict=True) if one}
            if rows:
                yield self._adds(rows)

    def _adds(self, rows: dict[int, FileRow]) -> FileActions:
        column = build_adds(list(rows.values()), self.form)
        return FileActions(column, np.fromiter(rows, np.uint64, len(rows)))

    async def new_adds(self) -> AsyncIterator[FileActions | CopiedGroup]:
        """Yield the live files that commits added."""
        held: dict[int, FileRow] = {}
        for file in self._commits:
            requested = self._commit_keys.get(file.end_version)
            if requested is None:
                continue
            chosen = set(requested.tolist())
            async for lines in self._lines.read(file):
                for line in lines:
                    if line.add is not None and (key := line.add.key(self._log.url)) in chosen:
                        held[key] = line.add
                if len(held) >= ROWS_AT_ONCE:
                    yield await asyncio.to_thread(self._adds, held)
                    held = {}
        if held:
            yield await asyncio.to_thread(self._adds, held)

    # ------------------------------------------------------------------ removes

    async def stored_removes(
        self, files: Iterable[tuple[LogFile, int]]
    ) -> AsyncIterator[FileActions]:
        """Yield the removes in the given files of the previous checkpoint that are still valid."""
        for file, _ in files:
            if file.is_json:
                body = await self._log.body_slices(file)
                for lines in decode_full(file.name, body, self._log.memory_bytes):
                    rows = {r.key(self._log.url): r for line in lines if (r := line.remove)}
                    if (found := self._removes(self._valid_removes(rows))) is not None:
                        yield found
                continue
            batches = self._parquet_removes(file)
            while (found := await asyncio.to_thread(next, batches, None)) is not None:
                yield found

    def _valid_removes(self, rows: dict[int, FileRow]) -> dict[int, FileRow]:
        keys = np.fromiter(rows, np.uint64, len(rows))
        counts = self.still_count(keys)
        return {key: row for (key, row), one in zip(rows.items(), counts, strict=True) if one}

    def _parquet_removes(self, file: LogFile) -> Iterator[FileActions]:
        with self.open_file(file) as rows:
            for batch in rows.rows_with(("remove",), ("remove.path",), ROWS_AT_ONCE):
                column = batch.column("remove")
                column = column.filter(pc.is_valid(pc.struct_field(column, "path")))
                keys = remove_keys(column, self._log.url)
                keep = self.still_count(keys) & ~self.select_expired(column)
                if keep.any():
                    chosen = conformed_removes(column.filter(pa.array(keep)), self.form)
                    yield FileActions(chosen, keys[keep])

    def still_count(self, keys: KeyArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which removes of the previous checkpoint are not undone or repeated by commits."""
        return ~(self.snapshot.files.are_live(keys) | self.tombstones.contain(keys))

    def select_expired(self, removes: pa.StructArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which removes expired."""
        return expired_removes(removes, self._removed_after_ms)

    async def new_removes(self) -> AsyncIterator[FileActions]:
        """Yield the removes of commits that are still valid."""
        if not self.tombstones.count:
            return
        held: dict[int, FileRow] = {}
        for file in self._commits:
            async for lines in self._lines.read(file):
                rows = {
                    line.remove.key(self._log.url): line.remove for line in lines if line.remove
                }
                keys = np.fromiter(rows, np.uint64, len(rows))
                counts = self.tombstones.take_counting(file.end_version, keys)
                held |= {k: r for (k, r), one in zip(rows.items(), counts, strict=True) if one}
                if len(held) >= ROWS_AT_ONCE:
                    if (found := await asyncio.to_thread(self._removes, held)) is not None:
                        yield found
                    held = {}
        if (found := self._removes(held)) is not None:
            yield found

    def _removes(self, rows: dict[int, FileRow]) -> FileActions | None:
        rows = {
            key: row
            for key, row in rows.items()
            if (row.deletion_timestamp or 0) > self._removed_after_ms
        }
        if not rows:
            return None
        keys = np.fromiter(rows, np.uint64, len(rows))
        return FileActions(build_removes(list(rows.values()), self.form), keys)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive row groups to be decoded."""

    groups: list[int]
    first_row: int


COPIED_ROWS = ROWS_AT_ONCE // 4
"""Smaller row groups are decoded, so that they are merged."""


# The same bytes in memory are checked and copied, so overwriting the file in between has no
# effect.

CHECKED_ROWS = 8192
"""More rows are not faster, and the allocator would keep their memory for the thread."""


class GroupChecks:
    """Compares the row groups of one checkpoint file with the expected keys.

    As a context manager it stops its thread. One row group is checked at a time; only its key
    columns are in memory.

    Args:
        name: Of the file, for error messages.
        root_url: The table's location, to recognise absolute paths below it.
        add_type: Of the `add` actions that are written.
    """

    def __init__(self, name: str, root_url: str, add_type: pa.StructType) -> None:
        self._name = name
        self._root_url = root_url
        self._type = _select_identity(add_type)
        self._blanks: dict[int, bytes] = {}
        self._pending: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="row-group-check")

    def __enter__(self) -> GroupChecks:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def begin(
        self, source: BinaryIO, columns: Mapping[str, Chunk], keys: KeyArray
    ) -> dict[str, bytes]:
        """Start checking a row group, after waiting for the check of the one before.

        Args:
            columns: Of the row group, by path; those of `source`.
            keys: Of its rows, shape (n,).

        Returns:
            The pages that are checked, by path of their column: to be copied unchanged.

        Raises:
            CorruptLogError, LogCleanedUpError: As `finish`, of the row group before.
        """
        self.finish()
        blank = self._blank(len(keys))
        pages = {
            path: read_pages(source, columns[path]) for path in IDENTITY_COLUMNS if path in columns
        }
        self._pending = self._pool.submit(self._check, columns, pages, blank, keys)
        return pages

    def finish(self) -> None:
        """Wait for the current check.

        Raises:
            CorruptLogError: The row group is damaged.
            LogCleanedUpError: It has other rows.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _blank(self, rows: int) -> bytes:
        """Return a file of empty columns, for columns missing from the row group."""
        if rows not in self._blanks:
            schema = pa.schema({"add": self._type})
            members = [pa.nulls(rows, item.type) for item in self._type]
            add = pa.StructArray.from_arrays(members, fields=list(self._type))
            # Almost all row groups of a file have the same size.
            self._blanks = {rows: encode_group(pa.RecordBatch.from_arrays([add], schema=schema))}
        return self._blanks[rows]

    def _check(
        self,
        columns: Mapping[str, Chunk],
        pages: Mapping[str, bytes],
        blank: bytes,
        keys: KeyArray,
    ) -> None:
        chunks = {path: columns[path] for path in pages}
        body = io.BytesIO()
        file = RowGroupFile(body.write)
        # The source is empty: all columns were read already.
        file.copy(io.BytesIO(), chunks, blank, len(keys), pages)
        file.close()
        source = cast(BinaryIO, pa.BufferReader(body.getbuffer()))
        with CheckpointFile(source, self._name) as rows:
            for batch in rows.rows_here(("add",), CHECKED_ROWS):
                requested, keys = keys[: batch.num_rows], keys[batch.num_rows :]
                check_entries(batch.column("add"), requested, self._name, self._root_url)


def _select_identity(add_type: pa.StructType) -> pa.StructType:
    """Return the part of the type that has the `IDENTITY_COLUMNS`."""
    members = []
    for item in add_type:
        if f"add.{item.name}" in IDENTITY_COLUMNS:
            members.append(item)
        elif pa.types.is_struct(item.type):
            leaves = [
                leaf for leaf in item.type if f"add.{item.name}.{leaf.name}" in IDENTITY_COLUMNS
            ]
            members += [item.with_type(pa.struct(leaves))] if leaves else []
    return pa.struct(members)
