"""Reads the tasks of arrays: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_places import RowPlaces, places_of
from tailerd.errors import LogCleanedUpError
from tailerd.formats.base import TaskReader
from tailerd.formats.plain_schema import decode_schema, select_columns
from tailerd.formats.tiledb.array_log import ArrayLog, commits_changed
from tailerd.formats.tiledb.change_order import in_order
from tailerd.formats.tiledb.late_rows import late_difference
from tailerd.formats.tiledb.library import ATTEMPTS
from tailerd.formats.tiledb.protocol.timeline import commits_digest
from tailerd.formats.tiledb.scan import Part, TileScan, payload_of
from tailerd.formats.tiledb.step_rows import (
    ChangedRows,
    States,
    changed_rows,
    snapshot_rows,
    step_difference,
)
from tailerd.loop_thread import LoopThread
from tailerd.storage.stores import Stores


class TileDBTaskReader(TaskReader):
    """Reads differences of states, and shares of snapshots; see `base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns."""
        return select_columns(decode_schema(payload_of(task).schema), columns)

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
        schema, scan = self.schema(task, columns), payload_of(task)
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
                    places=_places(task, scan, start + begin),
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
        timeline = loop.run(ArrayLog(store, root, scan.url).look(scan.seen_ms))
    if commits_digest(timeline.commits, scan.seen_ms) != scan.seen:
        raise commits_changed(scan.url)


def _places(task: ChangeTask, scan: TileScan, row: int) -> RowPlaces:
    places = places_of(task, task.position, row)
    if scan.part is not Part.LATE:
        return places
    # Distinct from the places of the version's own rows.
    return replace(places, prefix=f"late.{scan.until_ms}.")


def _pieces(rows: pa.RecordBatch, limit: BatchLimit, *, together: int) -> Iterator[tuple[int, int]]:
    """Yield start and count of batches within the limits; an update's images are in one batch."""
    if not rows.num_rows:
        return
    width = max(1, rows.nbytes // rows.num_rows)
    count = min(limit.max_rows, limit.max_bytes // width) // together * together
    count = max(together, count)
    for start in range(0, rows.num_rows, count):
        yield start, min(count, rows.num_rows - start)
