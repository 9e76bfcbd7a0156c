"""Reads fragments whose columns were rewritten in place: rows with changed values are updates.

Both sides are read in parallel, in the rewritten columns; all other columns are in the same files
on both sides, so they are read once, for the rows that differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.row_places import RowPlaces
from tailerd.formats.lance.fragment_rows import OffsetRows, RowReading, read_rows, take_rows
from tailerd.formats.lance.payload import ChangedColumns, file_number
from tailerd.formats.plain_schema import decode_schema, select_columns
from tailerd.rows.equality import RowComparer
from tailerd.rows.hash_kernels import Bools, Rows

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
        at, places, other_places = np.intersect1d(
            one[0], other[0], assume_unique=True, return_indices=True
        )
        if len(at):
            yield at, take_rows(one[1], places), take_rows(other[1], other_places)
        last = min(one[0][-1], other[0][-1])
        waiting = [_after(one, last, before), _after(other, last, after)]


def _after(rows: OffsetRows, last: int, more: Iterator[OffsetRows]) -> OffsetRows | None:
    """Return the rows above an offset; the next rows if there are none."""
    first = int(np.searchsorted(rows[0], last, "right"))
    if first == len(rows[0]):
        return next(more, None)
    return rows[0][first:], rows[1].slice(first)


def _parts(places: Rows, most: int) -> Iterator[Rows]:
    # Each row is emitted twice.
    step = max(1, most // 2)
    for first in range(0, len(places), step):
        yield places[first : first + step]


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
        places=RowPlaces(
            table_id=task.table_id,
            files=np.where(is_new, numbers[1], numbers[0]),
            rows=np.repeat(at, 2),
            prefix=payload.prefix,
        ),
    )
