"""Reads the descriptions of live files again from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from tailerd.errors import CorruptLogError, FileMissingError, LogCleanedUpError
from tailerd.formats.delta.log.checkpoint_entries import check_entries, entries_at
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.parquet_rows import FEWER_ROWS, CheckpointFile
from tailerd.formats.delta.protocol.checkpoint import (
    COUNT_COLUMNS,
    FILE_COLUMNS,
    KEY_COLUMNS,
    STATS_COLUMNS,
    live_rows,
)
from tailerd.formats.delta.protocol.commit_file import decode_lines
from tailerd.formats.delta.protocol.file_entries import (
    count_live_rows,
    entries_of_checkpoint,
    entries_of_files,
    files_of_entries,
)
from tailerd.formats.delta.protocol.file_index import FileOrigins
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile, files_added
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.snapshot import Snapshot, named_twice


async def read_live_files(
    reader: LogReader,
    snapshot: Snapshot,
    *,
    first_key: int = 0,
    until_key: int | None = None,
    with_stats: bool = False,
) -> AsyncIterator[list[LiveFile]]:
    """Yield live files with first_key <= key < until_key, in lists of bounded length.

    The order within the range is not defined.

    Raises:
        CorruptLogError, LogCleanedUpError: The log changed since the snapshot was made.
    """
    async for entries in read_live_entries(
        reader, snapshot, first_key=first_key, until_key=until_key, with_stats=with_stats
    ):
        yield await asyncio.to_thread(files_of_entries, entries)


async def read_live_entries(
    reader: LogReader,
    snapshot: Snapshot,
    *,
    first_key: int = 0,
    until_key: int | None = None,
    with_stats: bool = False,
) -> AsyncIterator[pa.RecordBatch]:
    """Yield the same files as columns (`ENTRIES`); errors as `read_live_files`."""
    origins = snapshot.files.origins_between(first_key, until_key)
    seen = 0
    with _while_it_is_there(snapshot):
        for file, first_row in snapshot.checkpoint_files:
            batches = _checkpoint_batches(reader, file, first_row, origins, with_stats)
            while (entries := await asyncio.to_thread(next, batches, None)) is not None:
                seen += entries.num_rows
                yield entries
        async for entries in _commit_entries(reader, snapshot, origins):
            seen += entries.num_rows
            yield entries
    if seen != origins.count:
        raise CorruptLogError(
            f"Version {snapshot.version} has {origins.count} such files, and {seen} were found"
            " again: the log changed while it was read.",
            remedy="Run the command again.",
        )


async def count_rows(reader: LogReader, snapshot: Snapshot) -> int | None:
    """Return the rows of all live files without deleted ones; None if a file lacks statistics.

    Raises:
        CorruptLogError, LogCleanedUpError: The log changed since the snapshot was made.
    """
    origins = snapshot.files.origins_between(0, None)
    total = 0
    with _while_it_is_there(snapshot):
        for file, first_row in snapshot.checkpoint_files:
            count = await asyncio.to_thread(
                _count_checkpoint_rows, reader, file, first_row, origins
            )
            if count is None:
                return None
            total += count
        async for entries in _commit_entries(reader, snapshot, origins):
            count = count_live_rows(entries)
            if count is None:
                return None
            total += count
    return total


@contextmanager
def _while_it_is_there(snapshot: Snapshot) -> Iterator[None]:
    try:
        yield
    except FileMissingError as error:
        raise LogCleanedUpError(
            f"The log was cleaned up while version {snapshot.version} was read: {error.message}",
            remedy="Run the command again.",
        ) from error


def _count_checkpoint_rows(
    reader: LogReader, file: LogFile, first_row: int, origins: FileOrigins
) -> int | None:
    total = 0
    if file.is_json:
        counts: Iterator[int | None] = map(
            count_live_rows, _checkpoint_batches(reader, file, first_row, origins, True)
        )
    else:
        columns = (*KEY_COLUMNS, *COUNT_COLUMNS)
        entries = _checkpoint_entries(reader, file, first_row, origins, columns)
        counts = (live_rows(add) for add, _ in entries)
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _checkpoint_batches(
    reader: LogReader, file: LogFile, first_row: int, origins: FileOrigins, with_stats: bool
) -> Iterator[pa.RecordBatch]:
    if file.is_json:
        yield from _manifest_entries(reader, file, origins)
        return
    columns = (*FILE_COLUMNS, *STATS_COLUMNS) if with_stats else FILE_COLUMNS
    for add, keys in _checkpoint_entries(reader, file, first_row, origins, columns):
        yield entries_of_checkpoint(add, keys, file.name)


def _checkpoint_entries(
    reader: LogReader,
    file: LogFile,
    first_row: int,
    origins: FileOrigins,
    columns: tuple[str, ...],
) -> Iterator[tuple[pa.StructArray, KeyArray]]:
    """Yield the chosen `add` entries of a Parquet checkpoint file, with their keys.

    Args:
        columns: Of the entries, including the key columns.
    """
    rows = CheckpointFile.open(reader, file)
    try:
        for batch in rows.rows(columns, FEWER_ROWS):
            start, end = np.searchsorted(
                origins.checkpoint_rows, [first_row, first_row + batch.num_rows]
            )
            if start < end:
                positions = origins.checkpoint_rows[start:end].astype(np.int64) - first_row
                add, keys = (
                    entries_at(batch.column("add"), positions),
                    origins.checkpoint_keys[start:end],
                )
                check_entries(add, keys, file.name, reader.url)
                yield add, keys
            first_row += batch.num_rows
    finally:
        rows.close()


def _manifest_entries(
    reader: LogReader, file: LogFile, origins: FileOrigins
) -> Iterator[pa.RecordBatch]:
    keys = np.sort(origins.checkpoint_keys)
    for lines in decode_lines(file.name, reader.open_slices(file), reader.memory_bytes):
        if files := list(files_added(lines, keys, reader.url)):
            yield entries_of_files(files)


async def _commit_entries(
    reader: LogReader, snapshot: Snapshot, origins: FileOrigins
) -> AsyncIterator[pa.RecordBatch]:
    compactions = {file.end_version: file for file in snapshot.compactions}
    for version in np.unique(origins.commit_versions).tolist():
        keys = origins.commit_keys[origins.commit_versions == version]
        file = compactions.get(version) or await reader.commit_file(version)
        if file is None:
            raise LogCleanedUpError(
                f"The commit of version {version} no longer exists, because the log was cleaned up"
                " while it was read.",
                remedy="Run the command again.",
            )
        found = 0
        async for entries in _added_in(reader, file, keys):
            found += entries.num_rows
            yield entries
        if found > len(keys):
            raise named_twice(file.name)


async def _added_in(
    reader: LogReader, file: LogFile, keys: KeyArray
) -> AsyncIterator[pa.RecordBatch]:
    async for lines, _ in reader.lines(file):
        if files := list(files_added(lines, keys, reader.url)):
            yield entries_of_files(files)
