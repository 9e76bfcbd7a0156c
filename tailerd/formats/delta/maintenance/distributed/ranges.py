"""Exchanges file actions between tasks: split by key ranges, merged, and written as sidecars."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailerd.formats.delta.log.checkpoint_entries import expired_removes
from tailerd.formats.delta.log.checkpoint_output import CheckpointOutput, WrittenRows
from tailerd.formats.delta.log.checkpoint_source import FileActions
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.maintenance.distributed.actions import (
    BATCH_ROWS,
    OrderedActions,
    make_schema,
    read_actions,
)
from tailerd.formats.delta.maintenance.distributed.request import LogSplit
from tailerd.formats.delta.protocol.checkpoint_columns import CheckpointColumns
from tailerd.formats.delta.protocol.checkpoint_form import CheckpointForm
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.log_path import SIDECAR_FOLDER, LogFile, LogFileKind
from tailerd.formats.delta.protocol.sidecar import SIDECAR_FILES

Piece = tuple[bool, bytes]
"""Whether the actions are `add` actions, and an Arrow batch of `make_schema` without its schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSidecar:
    """A sidecar written by a task, under a name unique to the attempt."""

    file: LogFile
    adds: int
    removes: int


def read_pieces(
    log: LogFolder, split: LogSplit, form: CheckpointForm, ranges: int
) -> Iterator[tuple[int, Piece]]:
    """Yield the file actions of a split in pieces, each with the number of its key range.

    Args:
        ranges: Number of key ranges of equal width.
    """
    for actions in read_actions(log, split, form):
        yield from _cut(actions, ranges)


def number_ranges(keys: KeyArray, ranges: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the number of each key's range, from 0."""
    return ((keys >> np.uint64(32)) * np.uint64(ranges)) >> np.uint64(32)


def _cut(actions: OrderedActions, ranges: int) -> Iterator[tuple[int, Piece]]:
    batch = actions.batch()
    if ranges == 1:
        yield 0, (actions.is_add, batch.serialize().to_pybytes())
        return
    where = number_ranges(actions.keys, ranges)
    order = np.argsort(where, kind="stable")
    where = where[order]
    sorted_batch = batch.take(pa.array(order))
    starts = np.flatnonzero(np.append(True, where[1:] != where[:-1])).tolist()
    for start, stop in zip(starts, [*starts[1:], len(where)], strict=True):
        piece = sorted_batch.slice(start, stop - start)
        yield int(where[start]), (actions.is_add, piece.serialize().to_pybytes())


def write_range(
    log: LogFolder, pieces: Iterable[Piece], form: CheckpointForm, version: int, cutoff_ms: int
) -> list[WrittenSidecar]:
    """Write the valid actions of one key range.

    Args:
        version: Of the checkpoint.
        cutoff_ms: Removes of files deleted at or before this time expired.

    Raises:
        StorageError: A sidecar cannot be written. Earlier ones stay, without being referenced.
    """
    adds, removes = _valid_actions(pieces, form, cutoff_ms)
    if not (len(adds.keys) or len(removes.keys)):
        return []
    return asyncio.run(_write(log, adds, removes, form, version))


def _valid_actions(
    pieces: Iterable[Piece], form: CheckpointForm, cutoff_ms: int
) -> tuple[FileActions, FileActions]:
    """Return the valid adds and removes: the last action of each key, unless it has expired."""
    schemas = {is_add: make_schema(form, is_add=is_add) for is_add in (True, False)}
    batches: dict[bool, list[pa.RecordBatch]] = {True: [], False: []}
    for is_add, body in pieces:
        batches[is_add].append(pa.ipc.read_record_batch(pa.py_buffer(body), schemas[is_add]))
    tables = [pa.Table.from_batches(batches[is_add], schemas[is_add]) for is_add in (True, False)]
    keys, order, position = (
        np.concatenate([table.column(name).to_numpy() for table in tables])
        for name in ("key", "order", "position")
    )
    ranked = np.lexsort((position, order, keys))
    ordered = keys[ranked]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    last = np.sort(ranked[is_last])
    adds = _take_actions(tables[0], last[last < len(tables[0])])
    removes = _take_actions(tables[1], last[last >= len(tables[0])] - len(tables[0]))
    keep = ~expired_removes(removes.column, cutoff_ms)
    return adds, FileActions(removes.column.filter(pa.array(keep)), removes.keys[keep])


def _take_actions(
    table: pa.Table, positions: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> FileActions:
    chosen = table.take(pa.array(positions)).combine_chunks()
    body = chosen.column("body")
    kind = table.schema.field("body").type
    column = body.chunk(0) if body.num_chunks else pa.array([], kind)
    return FileActions(column, chosen.column("key").to_numpy())


async def _write(
    log: LogFolder,
    adds: FileActions,
    removes: FileActions,
    form: CheckpointForm,
    version: int,
) -> list[WrittenSidecar]:
    """Write removes, then adds; start a new sidecar when one is full."""
    written: list[WrittenSidecar] = []
    todo = [*_slices(removes, is_add=False), *_slices(adds, is_add=True)]
    while todo:
        path = f"{log.path}/{SIDECAR_FOLDER}/{uuid.uuid4()}.parquet"
        columns = CheckpointColumns(form, None)
        async with CheckpointOutput(log.store, path, columns, WrittenRows()) as output:
            while todo and output.rows < SIDECAR_FILES:
                is_add, found = todo.pop(0)
                await (output.write_adds if is_add else output.write_removes)(found)
            await output.finish()
            file = LogFile(
                name=f"{SIDECAR_FOLDER}/{path.rpartition('/')[2]}",
                kind=LogFileKind.SIDECAR,
                version=version,
                end_version=version,
                size_bytes=output.size_bytes,
                mtime_ms=int(time.time() * 1000),
            )
            written.append(WrittenSidecar(file=file, adds=output.adds, removes=output.removes))
    return written


def _slices(found: FileActions, *, is_add: bool) -> Iterator[tuple[bool, FileActions]]:
    for start in range(0, len(found.keys), BATCH_ROWS):
        stop = min(start + BATCH_ROWS, len(found.keys))
        column = found.column.slice(start, stop - start)
        yield is_add, FileActions(column, found.keys[start:stop])
