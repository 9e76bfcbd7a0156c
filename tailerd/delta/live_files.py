"""Finds the descriptions of live files again, where the log has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pyarrow as pa

from tailerd.delta.log_reader import LogReader
from tailerd.delta.parquet_rows import CheckpointFile
from tailerd.delta.protocol.checkpoint import FILE_COLUMNS, STATS_COLUMNS, live_files
from tailerd.delta.protocol.commit_file import decode_lines, slices
from tailerd.delta.protocol.file_index import FileOrigins
from tailerd.delta.protocol.file_key import KeyArray
from tailerd.delta.protocol.live_file import LiveFile, files_added
from tailerd.delta.protocol.log_path import LogFile
from tailerd.delta.protocol.snapshot import Snapshot
from tailerd.errors import CorruptLogError, MissingVersionError


async def read_live_files(
    reader: LogReader,
    snapshot: Snapshot,
    *,
    first_key: int = 0,
    until_key: int | None = None,
    with_stats: bool = False,
) -> AsyncIterator[list[LiveFile]]:
    """Yield live files with first_key <= key < until_key, in lists of bounded length.

    The order within the range is the log's and not defined.

    Raises:
        CorruptLogError, MissingVersionError: The log changed since the snapshot was made.
    """
    origins = snapshot.files.origins_between(first_key, until_key)
    seen = 0
    for file, first_row in snapshot.checkpoint_files:
        batches = _checkpoint_batches(reader, file, first_row, origins, with_stats)
        while (files := await asyncio.to_thread(next, batches, None)) is not None:
            seen += len(files)
            yield files
    async for files in _commit_files(reader, snapshot, origins):
        seen += len(files)
        yield files
    if seen != origins.count:
        raise CorruptLogError(
            f"Version {snapshot.version} has {origins.count} such files, and {seen} were found"
            " again: the log changed while it was read.",
            hint="Run the command again.",
        )


def _checkpoint_batches(
    reader: LogReader, file: LogFile, first_row: int, origins: FileOrigins, with_stats: bool
) -> Iterator[list[LiveFile]]:
    source = reader.store.open_input(reader.path_of(file))
    if file.is_json:
        with source:
            yield from _manifest_files(reader, file, source.read(), origins)
        return
    rows = CheckpointFile(source, file.name)
    columns = (*FILE_COLUMNS, *STATS_COLUMNS) if with_stats else FILE_COLUMNS
    try:
        for batch in rows.rows(columns):
            start, end = np.searchsorted(
                origins.checkpoint_rows, [first_row, first_row + batch.num_rows]
            )
            if start < end:
                places = origins.checkpoint_rows[start:end].astype(np.int64) - first_row
                add = batch.column("add").take(pa.array(places))
                yield live_files(add, origins.checkpoint_keys[start:end])
            first_row += batch.num_rows
    finally:
        rows.close()


def _manifest_files(
    reader: LogReader, file: LogFile, body: bytes, origins: FileOrigins
) -> Iterator[list[LiveFile]]:
    keys = np.sort(origins.checkpoint_keys)
    for lines in decode_lines(file.name, slices(body)):
        if files := list(files_added(lines, keys, reader.url)):
            yield files


async def _commit_files(
    reader: LogReader, snapshot: Snapshot, origins: FileOrigins
) -> AsyncIterator[list[LiveFile]]:
    compactions = {file.end_version: file for file in snapshot.compactions}
    for version in np.unique(origins.commit_versions).tolist():
        keys = origins.commit_keys[origins.commit_versions == version]
        file = compactions.get(version) or await reader.commit_file(version)
        if file is None:
            raise MissingVersionError(
                f"The commit of version {version} is gone, because the log was cleaned up while"
                " it was read.",
                hint="Run the command again.",
            )
        async for files in _added_in(reader, file, keys):
            yield files


async def _added_in(
    reader: LogReader, file: LogFile, keys: KeyArray
) -> AsyncIterator[list[LiveFile]]:
    async for lines, _ in reader.lines(file):
        if files := list(files_added(lines, keys, reader.url)):
            yield files
