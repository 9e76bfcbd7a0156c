"""Reads the tasks of Lance tables: in the daemon's threads and on executors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_positions import RowPositions, number_positions
from tailerd.errors import BugError
from tailerd.formats.base import TaskReader
from tailerd.formats.lance.fragment_rows import OffsetRows, RowReading, read_rows, take_rows
from tailerd.formats.lance.payload import (
    ChangedColumns,
    ComparedFragments,
    FragmentRows,
    decode_columns,
    decode_offsets,
    decode_payload,
    encode_offsets,
    file_number,
)
from tailerd.formats.lance.protocol.columns import ROW_ID
from tailerd.formats.plain_schema import decode_schema, select_columns
from tailerd.reading.compared_files import Columns, ComparedInputs
from tailerd.reading.compared_rows import compared_changes
from tailerd.reading.merged_batches import cut
from tailerd.rows.difference import Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.exact import PositionedRows
from tailerd.rows.groups import FileBounds, FilesToCompare
from tailerd.rows.hash_kernels import Bools, Rows
from tailerd.rows.positions import Positions
from tailerd.storage.stores import Stores


class LanceTaskReader(TaskReader):
    """Reads fragments, and differences of them; see `base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns."""
        return select_columns(decode_columns(decode_payload(task)), columns)

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
        payload = decode_payload(task)
        reading = RowReading(stores or Stores(), limit)
        for batch in _batches(task, payload, reading, columns):
            at = 0
            for part in cut(batch.rows, limit):
                yield batch.slice(at, part.num_rows)
                at += part.num_rows

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split rows of one fragment into shares; compared rows are not split."""
        payload = decode_payload(task)
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
            positions=number_positions(task, number, at),
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


class ComparedLance:
    """The `ComparedRows` of a commit."""

    def __init__(self, payload: ComparedFragments) -> None:
        self._payload = payload
        self._schema = decode_schema(payload.schema)

    @property
    def groups(self) -> Sequence[FilesToCompare]:
        """Return one group: any row may have moved to any fragment."""
        removed, added = (range(len(self.fragments(side))) for side in Side)
        return [FilesToCompare(removed=tuple(removed), added=tuple(added))]

    @property
    def key(self) -> Sequence[str]:
        """Key columns by which a delete and an insert are paired to an update; empty for none."""
        return self._payload.key

    @property
    def row_ids(self) -> Sequence[str]:
        """Return none: an id alone does not show that a row did not change."""
        return ()

    @property
    def prefix(self) -> str:
        """Distinguishes the positions of its rows from others of the version."""
        return self._payload.prefix

    def fragments(self, side: Side) -> Sequence[FragmentRows]:
        """Return the fragments of a side."""
        return self._payload.removed if side is Side.REMOVED else self._payload.added

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the numbers of a side's fragments, as in `RowPositions`."""
        is_new = side is Side.ADDED
        return [file_number(each.fragment, is_new=is_new) for each in self.fragments(side)]

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides; with row ids if they are requested."""
        found = select_columns(self._schema, columns)
        if columns is not None and ROW_ID in columns:
            found = found.append(pa.field(ROW_ID, pa.uint64()))
        return found

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Return false: every row is selected."""
        return False


class ComparedLanceRows(ComparedInputs):
    """Reads the rows of a commit, fragment by fragment."""

    def __init__(self, payload: ComparedFragments, limit: BatchLimit, stores: Stores) -> None:
        super().__init__(limit)
        self._commit = ComparedLance(payload)
        self._reading = RowReading(stores, limit)

    @property
    def commit(self) -> ComparedLance:
        """The description of the rows."""
        return self._commit

    def footer_bounds(self, side: Side, number: int) -> FileBounds:
        """Return no bounds: the files have none."""
        return FileBounds()

    def read_input(
        self, side: Side, number: int, requested: Positions | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        """Yield rows of a fragment with their offsets in it."""
        fragment = self._commit.fragments(side)[number]
        offsets = None if requested is None else requested.to_numpy()
        yield from read_rows(fragment, self._reading, columns, offsets)


# Both sides are read in parallel, in the rewritten columns; all other columns are in the same
# files on both sides, so they are read once, for the rows that differ.

_SEED_BITS = 128
_KINDS = [ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE]


def read_changed_columns(
    task: ChangeTask,
    payload: ChangedColumns,
    reading: RowReading,
    columns: Sequence[str] | None,
) -> Iterator[ChangeBatch]:
    """Yield both images of each row whose values differ, the old one right before the new one.

    Raises:
        As `read_rows`.
    """
    schema = select_columns(decode_schema(payload.schema), columns)
    compared = select_columns(decode_schema(payload.schema), payload.changed)
    comparer = RowComparer(compared, secrets.randbits(_SEED_BITS))
    sides = (read_rows(side, reading, payload.changed) for side in (payload.before, payload.after))
    for at, before, after in in_step(*sides):
        differs = np.flatnonzero(~comparer.equal(before, after))
        for part in _parts(differs, reading.limit.max_rows):
            images = [take_rows(before, part), take_rows(after, part)]
            rows = _whole_rows(payload, reading, schema, at[part], images)
            yield _updates(task, payload, rows, at[part])


def in_step(
    before: Iterator[OffsetRows], after: Iterator[OffsetRows]
) -> Iterator[tuple[Rows, pa.RecordBatch, pa.RecordBatch]]:
    """Yield the rows that both sides have, by offset: offsets, and the rows of each side."""
    waiting: list[OffsetRows | None] = [next(before, None), next(after, None)]
    while waiting[0] is not None and waiting[1] is not None:
        one, other = waiting[0], waiting[1]
        at, positions, other_positions = np.intersect1d(
            one[0], other[0], assume_unique=True, return_indices=True
        )
        if len(at):
            yield at, take_rows(one[1], positions), take_rows(other[1], other_positions)
        last = min(one[0][-1], other[0][-1])
        waiting = [_after(one, last, before), _after(other, last, after)]


def _after(rows: OffsetRows, last: int, more: Iterator[OffsetRows]) -> OffsetRows | None:
    """Return the rows above an offset; the next rows if there are none."""
    first = int(np.searchsorted(rows[0], last, "right"))
    if first == len(rows[0]):
        return next(more, None)
    return rows[0][first:], rows[1].slice(first)


def _parts(positions: Rows, most: int) -> Iterator[Rows]:
    # Each row is emitted twice.
    step = max(1, most // 2)
    for first in range(0, len(positions), step):
        yield positions[first : first + step]


def _whole_rows(
    payload: ChangedColumns,
    reading: RowReading,
    schema: pa.Schema,
    at: Rows,
    images: Sequence[pa.RecordBatch],
) -> list[pa.RecordBatch]:
    """Return both images with all requested columns."""
    changed = set(payload.changed)
    others = [name for name in schema.names if name not in changed]
    same: pa.RecordBatch | None = None
    if others:
        same = pa.concat_batches(
            [rows for _, rows in read_rows(payload.after, reading, others, at)]
        )
    return [
        pa.RecordBatch.from_arrays(
            [
                image.column(name) if name in changed or same is None else same.column(name)
                for name in schema.names
            ],
            schema=schema,
        )
        for image in images
    ]


def _updates(
    task: ChangeTask, payload: ChangedColumns, images: Sequence[pa.RecordBatch], at: Rows
) -> ChangeBatch:
    count = len(at)
    order = np.arange(2 * count).reshape(2, count).T.ravel()
    is_new: Bools = order >= count
    rows = pa.concat_batches(images).take(pa.array(order))
    numbers = [file_number(payload.after.fragment, is_new=each) for each in (False, True)]
    return ChangeBatch(
        rows=rows,
        change_type=pa.DictionaryArray.from_arrays(
            pa.array(is_new.astype(np.int8)), pa.array(_KINDS, pa.string())
        ),
        version=task.version,
        timestamp_us=task.timestamp_us,
        change_source=task.change_source,
        positions=RowPositions(
            table_id=task.table_id,
            files=np.where(is_new, numbers[1], numbers[0]),
            rows=np.repeat(at, 2),
            prefix=payload.prefix,
        ),
    )
