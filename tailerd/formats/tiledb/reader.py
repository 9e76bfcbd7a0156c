"""Reads the tasks of arrays: in the daemon's threads and on executors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_positions import RowPositions, number_positions
from tailerd.errors import LogCleanedUpError, MissingVersionError, StorageError
from tailerd.formats.base import TaskReader
from tailerd.formats.plain_schema import decode_schema, select_columns
from tailerd.formats.tiledb.array_log import ArrayLog, commits_changed
from tailerd.formats.tiledb.cells import Box, measure_box, read_box, read_near
from tailerd.formats.tiledb.columns import ArrayShape, conform_rows, read_shape
from tailerd.formats.tiledb.conditions import expression
from tailerd.formats.tiledb.library import ATTEMPTS
from tailerd.formats.tiledb.protocol.timeline import commits_digest
from tailerd.formats.tiledb.scan import Part, TileScan, decode_payload
from tailerd.formats.tiledb.step_rows import (
    ChangedRows,
    Difference,
    States,
    changed_rows,
    difference,
    is_among,
    is_inside,
    no_rows,
    overlap,
    read_deletes,
    select_cells,
    snapshot_rows,
    step_difference,
)
from tailerd.loop_thread import LoopThread
from tailerd.remedies import RESET_PIPELINE
from tailerd.storage.stores import Stores


class TileDBTaskReader(TaskReader):
    """Reads differences of states, and shares of snapshots; see `base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns."""
        return select_columns(decode_schema(decode_payload(task).schema), columns)

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
            TableError, StorageError: They cannot be read.
        """
        schema, scan = self.schema(task, columns), decode_payload(task)
        start = 0
        for found in _changes(scan, stores or Stores()):
            kind = task.change_type or found.kinds
            rows = found.rows.select(schema.names)
            for begin, count in _pieces(rows, limit, together=found.together):
                yield ChangeBatch(
                    rows=rows.slice(begin, count),
                    change_type=kind if isinstance(kind, ChangeType) else kind.slice(begin, count),
                    version=task.version,
                    timestamp_us=task.timestamp_us,
                    change_source=task.change_source,
                    positions=_positions(task, scan, start + begin),
                )
            start += rows.num_rows

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Return the task alone: snapshots are planned in shares, and steps are not split."""
        return [task]


def _changes(scan: TileScan, stores: Stores) -> Iterator[ChangedRows]:
    ranges = scan.first_ranges or (None,)
    parts = (_part(States(scan, stores, each), stores) for each in ranges)
    yield from next(parts) if len(ranges) == 1 else in_order(parts)


def _part(states: States, stores: Stores) -> Iterator[ChangedRows]:
    """Return the changes of one range, completely read."""
    for _ in range(ATTEMPTS - 1):
        # A step opens the array several times; files may be merged and deleted in between.
        with suppress(LogCleanedUpError):
            found = _found(states)
            break
    else:
        found = _found(states)
    _check_seen(states.scan, stores)
    return found


def _found(states: States) -> Iterator[ChangedRows]:
    scan = states.scan
    if scan.part is Part.SNAPSHOT:
        rows, _ = snapshot_rows(states)
        kinds = pa.repeat(pa.scalar(ChangeType.INSERT.value), rows.num_rows)
        return iter([ChangedRows(rows, kinds)])
    is_late = scan.part is Part.LATE
    shape = states.shape(scan.after_ms if is_late else scan.until_ms)
    return changed_rows(late_difference(states) if is_late else step_difference(states), shape)


def _check_seen(scan: TileScan, stores: Stores) -> None:
    """Make sure that only the commits for which the task was planned were read.

    TileDB reads all commits up to a time. One that appeared meanwhile was read as well, and would
    be delivered again as a late one.

    Raises:
        LogChangedError: There is a further commit now.
    """
    if not scan.seen:
        return
    store, root = stores.locate(scan.url)
    with LoopThread() as loop:
        timeline = loop.run(ArrayLog(store, root, scan.url).refresh(scan.seen_ms))
    if commits_digest(timeline.commits, scan.seen_ms) != scan.seen:
        raise commits_changed(scan.url)


def _positions(task: ChangeTask, scan: TileScan, row: int) -> RowPositions:
    positions = number_positions(task, task.position, row)
    if scan.part is not Part.LATE:
        return positions
    # Distinct from the positions of the version's own rows.
    return replace(positions, prefix=f"late.{scan.until_ms}.")


def _pieces(rows: pa.RecordBatch, limit: BatchLimit, *, together: int) -> Iterator[tuple[int, int]]:
    """Yield start and count of batches within the limits; an update's images are in one batch."""
    if not rows.num_rows:
        return
    width = max(1, rows.nbytes // rows.num_rows)
    count = min(limit.max_rows, limit.max_bytes // width) // together * together
    count = max(together, count)
    for start in range(0, rows.num_rows, count):
        yield start, min(count, rows.num_rows - start)


# Deletes come before updates, and these before inserts. Ranges ascend by the first coordinate, as
# do rows of one kind, so that the result does not depend on the ranges. Rows that must wait are
# spilled to disk.

_TOGETHER = 2
"""Rows of an update."""


class _Waiting:
    """Rows of one kind in an unnamed file on disk, removed with the process."""

    def __init__(self, together: int) -> None:
        self._together = together
        with _disk_errors():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, found: ChangedRows) -> None:
        schema = found.rows.schema.append(pa.field("", pa.string()))
        batch = pa.RecordBatch.from_arrays([*found.rows.columns, found.kinds], schema=schema)
        with _disk_errors():
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, schema)
            self._writer.write_batch(batch)

    def all(self) -> Iterator[ChangedRows]:
        if self._writer is None:
            return
        with _disk_errors():
            self._writer.close()
            self._file.seek(0)
            reader = pa.ipc.open_stream(self._file)
        while (batch := self._next(reader)) is not None:
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=_without_last(batch))
            yield ChangedRows(rows, batch.columns[-1], self._together)

    def _next(self, reader: pa.RecordBatchStreamReader) -> pa.RecordBatch | None:
        with _disk_errors(), suppress(StopIteration):
            return reader.read_next_batch()
        return None


def in_order(ranges: Iterable[Iterable[ChangedRows]]) -> Iterator[ChangedRows]:
    """Yield the changes of all ranges; only those of one are in memory at a time.

    Raises:
        StorageError: The local disk cannot be written.
    """
    with _Waiting(_TOGETHER) as updates, _Waiting(1) as inserts:
        for changes in ranges:
            for found in changes:
                if not found.rows.num_rows:
                    continue
                if found.together == _TOGETHER:
                    updates.add(found)
                elif found.kinds[0].as_py() == ChangeType.DELETE:
                    yield found
                else:
                    inserts.add(found)
        yield from updates.all()
        yield from inserts.all()


def _without_last(batch: pa.RecordBatch) -> pa.Schema:
    return batch.schema.remove(batch.num_columns - 1)


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            "Rows of a large commit cannot be kept in this machine's temporary folder until it is"
            f" their turn: {error.strerror or error}.",
            remedy="Free space, or set TMPDIR to a folder with more.",
        ) from error


# Clocks of clients differ, so a commit may appear with an earlier time than the newest. It changes
# only cells that no later commit wrote or deleted. Late commits are emitted one by one, ascending,
# each as if later ones of them did not exist yet.


def late_difference(states: States) -> Difference:
    """Return the changes of a late commit to the delivered state.

    The scan's `until_ms` is the commit's time, its `after_ms` the newest delivered one.

    Raises:
        MissingVersionError: The cells that later deletes leave cannot be determined.
        TableError, StorageError: It cannot be read.
    """
    shape = states.shape(states.scan.after_ms)
    if not shape.is_sparse:
        return _dense(states, shape)
    if states.scan.deletes or shape.allows_duplicates:
        found = _whole(states, shape)
    else:
        found = _compare_written(states, shape)
    if shape.allows_duplicates:
        return found
    return Difference(
        *(_never_written_again(rows, states, shape) for rows in (found.deleted, found.inserted))
    )


def _exclude_deleted(states: States, array: Any) -> str | None:
    """Return a condition for the cells that later deletes leave; None without later deletes."""
    texts = []
    for each, stored in zip(
        states.scan.later_deletes, read_deletes(states.scan.later_deletes), strict=True
    ):
        text = expression(stored, array)
        if text is None:
            raise MissingVersionError(
                f"What the late commit of {states.scan.until_ms} changed is not known, because"
                f" the later delete {each.name} has a condition that cannot be evaluated.",
                remedy=RESET_PIPELINE,
            )
        texts.append(f"({text})")
    return " and ".join(texts) or None


def _compare_written(states: States, shape: ArrayShape) -> Difference:
    time = states.scan.until_ms
    with states.open_array(time, time) as array:
        own = read_shape(array, states.scan.url)
        every = read_box(array, own, None)
        condition = _exclude_deleted(states, array)
        after = read_box(array, own, None, condition=condition).rows if condition else every.rows
    before = _rows_near(states, time - 1, every.coordinates, shape, condition)
    before = select_cells(before, every.rows, shape)
    return difference(before, conform_rows(after, shape))


def _rows_near(
    states: States,
    time_ms: int,
    coordinates: tuple[Any, ...],
    shape: ArrayShape,
    condition: str | None,
) -> pa.RecordBatch:
    if time_ms < 0:
        return no_rows(shape)
    with states.open_array(0, time_ms) as array:
        own = read_shape(array, states.scan.url)
        near = read_near(array, own, coordinates, condition=condition)
    return no_rows(shape) if near is None else conform_rows(near.rows, shape)


def _whole(states: States, shape: ArrayShape) -> Difference:
    """Compare the states right before and right after the commit, as later deletes leave them."""
    time = states.scan.until_ms
    found = []
    for at in (time - 1, time):
        if at < 0:
            found.append(no_rows(shape))
            continue
        with states.open_array(0, at) as array:
            own = read_shape(array, states.scan.url)
            rows = read_box(array, own, None, condition=_exclude_deleted(states, array)).rows
            found.append(conform_rows(rows, shape))
    return difference(*found)


def _never_written_again(rows: pa.RecordBatch, states: States, shape: ArrayShape) -> pa.RecordBatch:
    """Return the rows at coordinates to which nothing was written later."""
    for first, last in states.scan.later_writes:
        if not rows.num_rows:
            break
        with states.open_array(first, last) as array:
            own = read_shape(array, states.scan.url)
            written = conform_rows(read_box(array, own, None).rows, shape)
        keys = shape.keys
        is_again = is_among(rows.select(keys), written.select(keys))
        rows = rows.filter(pa.array(~is_again))
    return rows


def _dense(states: States, shape: ArrayShape) -> Difference:
    time, head = states.scan.until_ms, states.scan.after_ms
    own, later = _box(states, time, time), [_box(states, *w) for w in states.scan.later_writes]
    if own is None:
        return Difference(no_rows(shape), no_rows(shape))
    known = _around([_box(states, 0, time - 1) if time else None, *later])
    grown = _around([own, known])
    written = [each for each in later if each is not None]

    def visible(coordinates: tuple[Any, ...]) -> npt.NDArray[np.bool_]:
        found = is_inside(coordinates, own)
        for box in written:
            found &= ~is_inside(coordinates, box)
        return found

    inside = overlap(own, known)
    before = no_rows(shape)
    if inside is not None and time:
        with states.open_array(0, time - 1) as array:
            cells = read_box(array, read_shape(array, states.scan.url), inside)
        before = conform_rows(cells.rows.filter(pa.array(visible(cells.coordinates))), shape)
    with states.open_array(0, time) as array:
        cells = read_box(array, read_shape(array, states.scan.url), own)
        after = conform_rows(cells.rows.filter(pa.array(visible(cells.coordinates))), shape)
    found = difference(before, after)
    if grown == known:
        return found
    with states.open_array(0, head) as array:
        cells = read_box(array, shape, grown)
    is_new = ~is_inside(cells.coordinates, known) & ~is_inside(cells.coordinates, own)
    rows = pa.Table.from_batches([found.inserted, cells.rows.filter(pa.array(is_new))])
    return Difference(found.deleted, rows.combine_chunks().to_batches()[0])


def _box(states: States, first_ms: int, last_ms: int) -> Box | None:
    with states.open_array(first_ms, last_ms) as array:
        return measure_box(array)


def _around(boxes: list[Box | None]) -> Box | None:
    """Return the smallest box around boxes."""
    there = [each for each in boxes if each is not None]
    if not there:
        return None
    return tuple(
        (min(low for low, _ in ranges), max(high for _, high in ranges))
        for ranges in zip(*there, strict=True)
    )
