"""Reads the tasks of Iceberg tables: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import BinaryIO

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_positions import number_positions
from tailerd.errors import BugError, CorruptLogError, FileMissingError, MissingDataFileError
from tailerd.formats.base import TaskReader, split_file
from tailerd.formats.iceberg.columns import file_scans, parse_columns, rows_schema
from tailerd.formats.iceberg.deleted_rows import DeletedRows, missing_file, with_selection
from tailerd.formats.iceberg.payload import ComparedRows, DataRows, decode_payload
from tailerd.formats.view_reader import view_filters
from tailerd.reading.compared_files import Columns
from tailerd.reading.compared_rows import read_compared
from tailerd.reading.file_scan import PARQUET, FieldScan, FileScan, FileShare
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.small_files import read_files
from tailerd.rows.difference import Side
from tailerd.rows.groups import FilesToCompare
from tailerd.storage.stores import Stores

_TABLE_NAMES: frozenset[str] = frozenset()
"""Columns are found by id, so that names of others do not matter; one object for all scans."""
ROW_ID = "_metadata.row_id"
ROW_SEQUENCE = "_metadata.last_updated_sequence_number"
_ROW_IDS = (ROW_ID, ROW_SEQUENCE)
_ROW_ID_FIELD = 2147483540
_ROW_SEQUENCE_FIELD = 2147483539


class IcebergTaskReader(TaskReader):
    """Reads data files, and differences of their rows; see `base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns.

        Raises:
            TableError: A column has an unsupported type, or the name of a change column.
        """
        return rows_schema(decode_payload(task).schema, columns)

    def column_names(self, task: ChangeTask) -> Sequence[str]:
        """Return the names of all columns that a task's rows have."""
        return [each.name for each in parse_columns(decode_payload(task).schema)]

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
            TableError: A file is missing or damaged, or a compaction changed rows.
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
        """Yield the rows of tasks in order; files in a bucket are prefetched."""
        ahead = (url for task in tasks for url in _first_urls(task))
        with FilesAhead(ahead, stores or Stores()) as files:
            for is_compared, some in groupby(tasks, _is_compared):
                if not is_compared:
                    yield from _read_files(list(some), limit, columns, files)
                    continue
                for task in some:
                    yield from _read_difference(task, limit, columns, files)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split a large Parquet file into shares of its row groups."""
        payload = decode_payload(task)
        if isinstance(payload, ComparedRows) or payload.file.file_format != PARQUET:
            return [task]
        return split_file(task, payload, target_bytes)


def _is_compared(task: ChangeTask) -> bool:
    return isinstance(decode_payload(task), ComparedRows)


def _first_urls(task: ChangeTask) -> Iterator[str]:
    """Yield the files of a task in reading order, as far as the order is known."""
    payload = decode_payload(task)
    if isinstance(payload, DataRows):
        yield payload.file.url


def _file_scan(rows: DataRows, columns: tuple[str, ...] | None, deleted: DeletedRows) -> FileScan:
    scan = FileScan(
        url=rows.file.url,
        file_format=rows.file.file_format,
        fields=file_scans(rows.schema, columns, rows.identities),
        share=FileShare(index=rows.share_index, count=rows.share_count),
        table_names=_TABLE_NAMES,
    )
    return with_selection(scan, deleted)


def _read_files(
    tasks: Sequence[ChangeTask],
    limit: BatchLimit,
    columns: Sequence[str] | None,
    files: FilesAhead,
) -> Iterator[ChangeBatch]:
    """Yield the rows of files in order."""
    names = None if columns is None else tuple(columns)

    def open_file(url: str) -> BinaryIO:
        try:
            return files.open(url)
        except FileMissingError as error:
            raise missing_file(url) from error

    def scan(task: ChangeTask) -> FileScan:
        rows = decode_payload(task)
        assert isinstance(rows, DataRows)
        found = _file_scan(rows, names, DeletedRows(rows, limit, files.open_unplanned))
        return replace(found, filters=view_filters(task.view, found.schema))

    for number, (batch, _, positions) in read_files(map(scan, tasks), len(tasks), limit, open_file):
        task = tasks[number]
        rows = decode_payload(task)
        if task.change_type is None or not isinstance(rows, DataRows):
            raise BugError("A task of an Iceberg table does not say which change it is.")
        yield ChangeBatch(
            rows=batch,
            change_type=task.change_type,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            positions=number_positions(task, rows.number, positions),
        )


def _read_difference(
    task: ChangeTask, limit: BatchLimit, columns: Sequence[str] | None, files: FilesAhead
) -> Iterator[ChangeBatch]:
    payload = decode_payload(task)
    assert isinstance(payload, ComparedRows)
    rows_schema(payload.schema, columns)
    commit = _ComparedCommit(payload, limit, files)
    for batch in read_compared(task, commit, limit, columns, files):
        if payload.is_rewrite and batch.num_rows:
            raise CorruptLogError(
                f"Version {task.version} is a compaction (its operation is replace), and yet rows"
                " differ before and after it, so its writer changed rows that it should not.",
                remedy="To deliver its changes, read it with `changes: net` or"
                " `changes: files`; or roll the table back to the version before it.",
            )
        yield batch


class _ComparedCommit:
    """The `ComparedCommit` of a task."""

    def __init__(self, payload: ComparedRows, limit: BatchLimit, files: FilesAhead) -> None:
        self._payload = payload
        self._limit = limit
        self._files = files
        self._deleted: dict[tuple[Side, int], DeletedRows] = {}

    @property
    def groups(self) -> Sequence[FilesToCompare]:
        """Its files; each is in one group."""
        return self._payload.groups

    @property
    def key(self) -> Sequence[str]:
        """Key columns by which a delete and an insert are paired to an update; empty for none."""
        return self._payload.key or self.row_ids[:1]

    @property
    def row_ids(self) -> Sequence[str]:
        """Columns that are equal exactly if a row was carried over, the row id first."""
        return _ROW_IDS if self._has_row_ids else ()

    @cached_property
    def _has_row_ids(self) -> bool:
        names = {each.name for each in parse_columns(self._payload.schema)}
        return self._payload.have_row_ids and names.isdisjoint(_ROW_IDS)

    @property
    def prefix(self) -> str:
        """Distinguishes the positions of net rows from those of the version's own commit."""
        return self._payload.prefix

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the numbers of a side's files, as in `RowPositions`."""
        return [each.number for each in self._rows(side)]

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides; with row ids if they are requested."""
        found = rows_schema(self._payload.schema, columns)
        for name in self._requested_ids(columns):
            found = found.append(pa.field(name, pa.int64()))
        return found

    def scan(self, side: Side, number: int, columns: Columns = None) -> FileScan:
        """Return how to read a file: all rows that its delete files select.

        Raises:
            TableError: A column cannot be read.
        """
        rows = self._rows(side)[number]
        scan = _file_scan(rows, columns, self._selected(side, number))
        if not (requested := self._requested_ids(columns)):
            return scan
        ids = _id_scans(rows)
        return replace(scan, fields=(*scan.fields, *(ids[name] for name in requested)))

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Return whether the delete files of a file select none of its rows."""
        return self._selected(side, number).selects_nothing

    def missing(self, url: str) -> MissingDataFileError:
        """Return the error for a missing file."""
        return missing_file(url)

    def _rows(self, side: Side) -> Sequence[DataRows]:
        return self._payload.removed if side is Side.REMOVED else self._payload.added

    def _selected(self, side: Side, number: int) -> DeletedRows:
        """Return the rows of a file that are compared; delete files are read once."""
        if (side, number) not in self._deleted:
            rows = self._rows(side)[number]
            self._deleted[side, number] = DeletedRows(rows, self._limit, self._files.open_unplanned)
        return self._deleted[side, number]

    def _requested_ids(self, columns: Columns) -> Sequence[str]:
        return [name for name in self.row_ids if columns is not None and name in columns]


def _id_scans(rows: DataRows) -> dict[str, FieldScan]:
    """Return how to read the row lineage of a file. Specification: "Row Lineage"."""
    return {
        ROW_ID: FieldScan(
            target=pa.field(ROW_ID, pa.int64()),
            name="_row_id",
            field_id=_ROW_ID_FIELD,
            first_default=rows.first_row_id,
        ),
        ROW_SEQUENCE: FieldScan(
            target=pa.field(ROW_SEQUENCE, pa.int64()),
            name="_last_updated_sequence_number",
            field_id=_ROW_SEQUENCE_FIELD,
            default=pa.scalar(rows.sequence, pa.int64()),
        ),
    }
