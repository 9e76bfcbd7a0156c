"""Reads the tasks of Lance tables: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_places import places_of
from tailerd.errors import BugError
from tailerd.formats.base import TaskReader
from tailerd.formats.lance.changed_columns import read_changed_columns
from tailerd.formats.lance.compared import ComparedLanceRows
from tailerd.formats.lance.fragment_rows import RowReading, read_rows
from tailerd.formats.lance.payload import (
    ChangedColumns,
    ComparedFragments,
    FragmentRows,
    decode_offsets,
    encode_offsets,
    file_number,
    payload_of,
    schema_of,
)
from tailerd.formats.plain_schema import select_columns
from tailerd.reading.compared_rows import compared_changes
from tailerd.reading.merged_batches import cut
from tailerd.storage.stores import Stores


class LanceTaskReader(TaskReader):
    """Reads fragments, and differences of them; see `base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns."""
        return select_columns(schema_of(payload_of(task)), columns)

    def read(
        self,
        task: ChangeTask,
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield a task's rows.

        Raises:
            MissingExtraError: pylance is not installed.
            TableError: Its version was cleaned up, or a file is damaged.
        """
        payload = payload_of(task)
        reading = RowReading(stores or Stores(), limit)
        for batch in _batches(task, payload, reading, columns):
            at = 0
            for part in cut(batch.rows, limit):
                yield batch.slice(at, part.num_rows)
                at += part.num_rows

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split rows of one fragment into shares; compared rows are not split."""
        payload = payload_of(task)
        count = -(-task.size_bytes // target_bytes)
        if count < 2 or not isinstance(payload, FragmentRows) or payload.share is not None:
            return [task]
        parts = _shares(payload, count)
        return [
            replace(
                task,
                size_bytes=task.size_bytes // len(parts),
                num_records=part.rows,
                payload=part,
            )
            for part in parts
        ]


def _batches(
    task: ChangeTask,
    payload: FragmentRows | ChangedColumns | ComparedFragments,
    reading: RowReading,
    columns: Sequence[str] | None,
) -> Iterator[ChangeBatch]:
    if isinstance(payload, ChangedColumns):
        yield from read_changed_columns(task, payload, reading, columns)
    elif isinstance(payload, ComparedFragments):
        yield from _compared_rows(task, payload, reading, columns)
    else:
        yield from _fragment_rows(task, payload, reading, columns)


def _compared_rows(
    task: ChangeTask, payload: ComparedFragments, reading: RowReading, columns: Sequence[str] | None
) -> Iterator[ChangeBatch]:
    """Yield deletes, updates in place, and the rest."""

    def updates() -> Iterator[ChangeBatch]:
        for each in payload.updates:
            yield from read_changed_columns(task, each, reading, columns)

    rows = ComparedLanceRows(payload, reading.limit, reading.stores)
    are_updates_left = True
    for batch in compared_changes(task, rows, columns):
        if are_updates_left and batch.change_type is not ChangeType.DELETE:
            are_updates_left = False
            yield from updates()
        yield batch
    if are_updates_left:
        yield from updates()


def _fragment_rows(
    task: ChangeTask, payload: FragmentRows, reading: RowReading, columns: Sequence[str] | None
) -> Iterator[ChangeBatch]:
    if task.change_type is None:
        raise BugError("A task of a Lance table does not say which change it is.")
    is_new = payload.table.version == task.version
    number = file_number(payload.fragment, is_new=is_new)
    for at, rows in read_rows(payload, reading, columns):
        yield ChangeBatch(
            rows=rows,
            change_type=task.change_type,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            places=places_of(task, number, at),
        )


def _shares(payload: FragmentRows, count: int) -> list[FragmentRows]:
    """Return parts of about the same number of rows; the whole if it cannot be split."""
    rows = payload.rows
    if not rows or payload.is_legacy:
        return [payload]
    step = -(-rows // min(count, rows))
    starts = range(0, rows, step)
    if payload.offsets is not None:
        offsets = decode_offsets(payload.offsets)
        return [
            replace(payload, offsets=encode_offsets(offsets[start : start + step]))
            for start in starts
        ]
    return [replace(payload, share=(start, min(rows, start + step))) for start in starts]
