"""Reads the tasks of Kartothek datasets: in the daemon's threads and on executors."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import BinaryIO

import pyarrow as pa
from pyroaring import BitMap64

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType
from tailerd.changefeed.column_filter import UNKNOWN, ColumnFilter, may_pass
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_places import RowPlaces
from tailerd.errors import BugError, FileMissingError, FilesCollectedError
from tailerd.formats.kartothek.partition_files import PartitionFiles, partition_files
from tailerd.formats.kartothek.table_schema import (
    chosen,
    decode_schema,
    field_scans,
    path_pieces,
    path_value,
)
from tailerd.reading.file_scan import FileScan, FileShare
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.parquet import FileRows, read_file
from tailerd.reading.row_selection import RowSelection
from tailerd.rows.difference import Leftover, Side
from tailerd.rows.exact import Inputs, PositionedRows, exact_difference
from tailerd.rows.positions import Positions
from tailerd.storage.stores import Stores

_KEPT_BYTES = 32 * 1024 * 1024
_MOST_FILES = 1 << 32
"""Of one task: files of a version have different numbers whichever task they are of."""
_SIDES = {ChangeType.DELETE: Side.REMOVED, ChangeType.INSERT: Side.ADDED}


def collected(url: str) -> FilesCollectedError:
    """Return the error for a file that a state names and that is gone."""
    return FilesCollectedError(
        f"The data file {url} is gone: its dataset was garbage-collected, or deleted, before its"
        " rows were read.",
        hint="Go on with `tailerd offsets reset NAME --to snapshot`, or set on_gap. Collect garbage"
        " later than the slowest pipeline delivers, or set `format_options: {spool: link}`.",
    )


class KartothekTaskReader:
    """Reads data files, and differences of rewritten partitions; see `base.TaskReader`."""

    def __init__(self) -> None:
        self._differences = _Differences()

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns."""
        return chosen(decode_schema(partition_files(task).schema), columns)

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
            FilesCollectedError: A file is gone.
            TableError: A file is damaged.
        """
        return self.read_run([task], limit, columns, stores=stores)

    def read_run(
        self,
        tasks: Sequence[ChangeTask],
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield the rows of tasks in order; files of a bucket are asked for some ahead."""
        ahead = [url for task in tasks for url in _plain_urls(partition_files(task))]
        with FilesAhead(ahead, stores or Stores()) as files:
            for task in tasks:
                yield from self._rows(task, limit, columns, files)

    def _rows(
        self,
        task: ChangeTask,
        limit: BatchLimit,
        columns: Sequence[str] | None,
        files: FilesAhead,
    ) -> Iterator[ChangeBatch]:
        payload = partition_files(task)
        if task.change_type is None:
            raise BugError("A task of a dataset does not say which change it is.")
        found = (
            self._remaining(payload, task.change_type, limit, columns, files)
            if payload.others
            else ((0, each) for each in _file_rows(payload, payload.urls[0], limit, columns, files))
        )
        is_snapshot = task.change_source is ChangeSourceKind.SNAPSHOT
        for number, (rows, _, positions) in found:
            yield ChangeBatch(
                rows=rows,
                change_type=task.change_type,
                version=task.version,
                timestamp_us=task.timestamp_us,
                change_source=task.change_source,
                places=RowPlaces(
                    table_id=task.table_id,
                    files=task.position * _MOST_FILES + number,
                    rows=positions,
                    prefix="snapshot." if is_snapshot else "",
                ),
            )

    def _remaining(
        self,
        payload: PartitionFiles,
        change: ChangeType,
        limit: BatchLimit,
        columns: Sequence[str] | None,
        files: FilesAhead,
    ) -> Iterator[tuple[int, FileRows]]:
        """Yield the rows of one side that the other side does not have, and their file's number."""
        side = _SIDES[change]
        for left in self._differences.of(payload, side, limit, files):
            if left.side is side:
                url = payload.urls[left.input]
                for rows in _file_rows(payload, url, limit, columns, files, left.positions):
                    yield left.input, rows
        if side is Side.ADDED:
            # The inserts of a commit come last.
            self._differences.forget(payload)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Cut a large file into shares of its row groups; what is compared stays whole."""
        count = -(-task.size_bytes // target_bytes)
        payload = partition_files(task)
        if count < 2 or payload.others or payload.share_count > 1:
            return [task]
        return [
            replace(
                task,
                size_bytes=task.size_bytes // count,
                payload=replace(payload, share_index=index, share_count=count),
            )
            for index in range(count)
        ]

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Tell whether what the path of a task's files says keeps all their rows out."""
        payload = partition_files(task)
        return not all(may_pass(_value(payload, each.column), each) for each in filters)


def _plain_urls(payload: PartitionFiles) -> tuple[str, ...]:
    # What is compared is read twice, and in another order.
    return () if payload.others else payload.urls


def _value(payload: PartitionFiles, column: str) -> object:
    schema, said = decode_schema(payload.schema), dict(path_pieces(payload.folder))
    if column not in said or column not in schema.names:
        return UNKNOWN
    try:
        return path_value(said[column], schema.field(column), payload.folder).as_py()
    except (OverflowError, ValueError):
        # Python's years are 1 to 9999.
        return UNKNOWN


def _file_rows(
    payload: PartitionFiles,
    url: str,
    limit: BatchLimit,
    columns: Sequence[str] | None,
    files: FilesAhead,
    positions: Positions | None = None,
) -> Iterator[FileRows]:
    """Yield the rows of a file, all or those at some positions, in order."""

    def opened(place: str) -> BinaryIO:
        try:
            return files.open_beside(place) if payload.others else files.open(place)
        except FileMissingError as error:
            raise collected(place) from error

    schema = chosen(decode_schema(payload.schema), columns)
    scan = FileScan(
        url=url,
        fields=field_scans(schema, payload.folder),
        select_rows=None if positions is None else partial(_selection, positions),
        share=FileShare(index=payload.share_index, count=payload.share_count),
    )
    return read_file(scan, limit, opened)


def _selection(positions: Positions, _: int, __: int) -> RowSelection:
    return RowSelection(BitMap64(positions.to_numpy()), is_kept=True)


@dataclass
class _Difference:
    """The difference of one folder; found by whoever asks first, while others wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    left: list[Leftover] | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the positions."""
        return sum(each.positions.nbytes for each in self.left or ())


class _Differences:
    """Differences that were found last: the deletes of a folder and its inserts need the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[object, _Difference] = OrderedDict()

    def of(
        self, payload: PartitionFiles, side: Side, limit: BatchLimit, files: FilesAhead
    ) -> list[Leftover]:
        """Return the rows that one side has and the other has not, by the number of the file."""
        sides = [payload.urls, payload.others]
        removed, added = sides if side is Side.REMOVED else sides[::-1]
        key = (removed, added, payload.schema)
        with self._lock:
            known = self._known.setdefault(key, _Difference())
            self._known.move_to_end(key)
            kept = sum(each.nbytes for each in self._known.values())
            while kept > _KEPT_BYTES and len(self._known) > 1:
                kept -= self._known.popitem(last=False)[1].nbytes
        with known.lock:
            if known.left is None:
                known.left = _found(payload, removed, added, limit, files)
            return known.left

    def forget(self, inserts: PartitionFiles) -> None:
        """Drop a difference whose inserts were read."""
        with self._lock:
            self._known.pop((inserts.others, inserts.urls, inserts.schema), None)


def _found(
    payload: PartitionFiles,
    removed: Sequence[str],
    added: Sequence[str],
    limit: BatchLimit,
    files: FilesAhead,
) -> list[Leftover]:
    urls = {Side.REMOVED: removed, Side.ADDED: added}

    def read(side: Side, number: int, wanted: Positions | None) -> Iterable[PositionedRows]:
        for part in _file_rows(payload, urls[side][number], limit, None, files, wanted):
            yield part.positions, part.rows

    inputs = Inputs(
        schema=decode_schema(payload.schema),
        removed=range(len(removed)),
        added=range(len(added)),
        aligned=[(number, number) for number in range(min(len(removed), len(added)))],
        read=read,
    )
    return exact_difference(inputs, seed=secrets.randbits(63), max_bytes=limit.memory_bytes // 4)
