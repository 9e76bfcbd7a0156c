"""Reads the tasks of Kartothek datasets: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.column_filter import UNKNOWN, ColumnFilter, may_pass
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.row_positions import number_positions
from tailerd.errors import BugError, FileMissingError, FilesCollectedError
from tailerd.formats.base import split_file
from tailerd.formats.kartothek.partition_files import (
    DatasetFile,
    PartitionFile,
    RewrittenPartitions,
    decode_payload,
)
from tailerd.formats.kartothek.table_schema import field_scans, path_pieces, path_value
from tailerd.formats.plain_schema import decode_schema, select_columns
from tailerd.formats.view_reader import view_filters
from tailerd.reading.compared_files import Columns
from tailerd.reading.compared_rows import read_compared
from tailerd.reading.file_scan import FileScan, FileShare
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.parquet import read_file
from tailerd.remedies import RESET_PIPELINE
from tailerd.rows.difference import Side
from tailerd.rows.groups import FilesToCompare
from tailerd.storage.stores import Stores

_MAX_FILES = 1 << 32
"""Maximum per task, so that file numbers are unique among all tasks of a version."""


def describe_collected(url: str) -> FilesCollectedError:
    """Return the error for a missing file that a state references."""
    return FilesCollectedError(
        f"The data file {url} no longer exists: its dataset was garbage-collected, or deleted,"
        " before its rows were read.",
        remedy=f"{RESET_PIPELINE} Collect garbage later than the slowest pipeline delivers, or"
        " set `format_options: {spool: link}`.",
    )


class KartothekTaskReader:
    """Reads data files, and differences of rewritten partitions; see `base.TaskReader`."""

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
            FilesCollectedError: A file is missing.
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
        """Yield the rows of tasks in order; files in a bucket are prefetched."""
        ahead = (url for task in tasks for url in _read_first(task))
        with FilesAhead(ahead, stores or Stores()) as files:
            for task in tasks:
                payload = decode_payload(task)
                if isinstance(payload, RewrittenPartitions):
                    commit = _RewrittenCommit(payload, task.position)
                    yield from read_compared(task, commit, limit, columns, files)
                else:
                    yield from _file_rows(task, payload, limit, columns, files)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split a large file into shares of its row groups; compared files are not split."""
        payload = decode_payload(task)
        if isinstance(payload, RewrittenPartitions):
            return [task]
        return split_file(task, payload, target_bytes)

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Return whether a value in the path of a task's file excludes all its rows."""
        payload = decode_payload(task)
        if isinstance(payload, RewrittenPartitions):
            # All rows are needed: rows of one file are compared with those of another.
            return False
        return not all(may_pass(_value(payload, each.column), each) for each in filters)


class _RewrittenCommit:
    """The `ComparedCommit` of rewritten partitions."""

    def __init__(self, payload: RewrittenPartitions, position: int) -> None:
        self._payload = payload
        self._first_number = position * _MAX_FILES
        self._schema = decode_schema(payload.schema)

    @property
    def groups(self) -> Sequence[FilesToCompare]:
        """Its files by partition."""
        return self._payload.groups

    @property
    def key(self) -> Sequence[str]:
        """Key columns by which a delete and an insert are paired to an update; empty for none."""
        return self._payload.key

    @property
    def row_ids(self) -> Sequence[str]:
        """Return none: rows of a dataset have no ids."""
        return ()

    @property
    def prefix(self) -> str:
        """Return an empty prefix: rows of a version are found in only one way."""
        return ""

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the numbers of a side's files; those of removed files are even."""
        count = len(self._payload.removed if side is Side.REMOVED else self._payload.added)
        return range(self._first_number + side, self._first_number + side + 2 * count, 2)

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides."""
        return select_columns(self._schema, columns)

    def scan(self, side: Side, number: int, columns: Columns = None) -> FileScan:
        """Return how to read a file.

        Raises:
            CorruptLogError: Its path has an invalid value for a column.
        """
        files = self._payload.removed if side is Side.REMOVED else self._payload.added
        return _scan(files[number], self._schema, columns)

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Return false: every row of a file is selected."""
        return False

    def missing(self, url: str) -> FilesCollectedError:
        """Return the error for a missing file."""
        return describe_collected(url)


def _read_first(task: ChangeTask) -> Iterator[str]:
    """Yield the files of a task in reading order, as far as the order is known."""
    payload = decode_payload(task)
    if isinstance(payload, PartitionFile):
        yield payload.file.url
        return
    for group in payload.groups:
        if len(group.removed) == len(group.added) == 1:
            yield payload.removed[group.removed[0]].url
            yield payload.added[group.added[0]].url


def _scan(file: DatasetFile, schema: pa.Schema, columns: Sequence[str] | None) -> FileScan:
    return FileScan(
        url=file.url,
        fields=field_scans(select_columns(schema, columns), file.folder),
        table_names=frozenset(schema.names),
    )


def _value(payload: PartitionFile, column: str) -> object:
    folder = payload.file.folder
    schema, reported = decode_schema(payload.schema), dict(path_pieces(folder))
    if column not in reported or column not in schema.names:
        return UNKNOWN
    try:
        return path_value(reported[column], schema.field(column), folder).as_py()
    except (OverflowError, ValueError):
        # Python's years end at 9999.
        return UNKNOWN


def _file_rows(
    task: ChangeTask,
    payload: PartitionFile,
    limit: BatchLimit,
    columns: Sequence[str] | None,
    files: FilesAhead,
) -> Iterator[ChangeBatch]:
    """Yield the rows of a file in order."""
    if task.change_type is None:
        raise BugError("A task of a dataset does not say which change it is.")

    def open_file(url: str) -> BinaryIO:
        try:
            return files.open(url)
        except FileMissingError as error:
            raise describe_collected(url) from error

    share = FileShare(index=payload.share_index, count=payload.share_count)
    scan = _scan(payload.file, decode_schema(payload.schema), columns)
    scan = replace(scan, share=share, filters=view_filters(task.view, scan.schema))
    for rows, _, positions in read_file(scan, limit, open_file):
        yield ChangeBatch(
            rows=rows,
            change_type=task.change_type,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            positions=number_positions(task, task.position * _MAX_FILES, positions),
        )
