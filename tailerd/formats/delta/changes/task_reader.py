"""Reads the tasks of Delta tables: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.column_filter import UNKNOWN, ColumnFilter, may_pass
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.formats.delta.changes.exact_rows import read_exact
from tailerd.formats.delta.changes.read import column_scans, read_changes
from tailerd.formats.delta.protocol.data_file import DataFile, data_file
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.rewritten_files import RewrittenFiles, files_of, schema_of
from tailerd.formats.delta.protocol.schema import arrow_field, parse_schema
from tailerd.reading.files_ahead import FilesAhead
from tailerd.storage.stores import Stores


class DeltaTaskReader:
    """Reads data files and change files; see `formats.base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns.

        Raises:
            UnsupportedFeatureError: A column has an unsupported type.
            TableError: A column has the name of a change column.
        """
        scans = column_scans(schema_of(task), None if columns is None else tuple(columns))
        return pa.schema([field.target for field in scans])

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
            TableError: A file is missing or damaged.
        """
        return _read(task, limit, columns, FilesAhead((), stores or Stores()))

    def read_run(
        self,
        tasks: Sequence[ChangeTask],
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield the rows of tasks in order; files in a bucket are prefetched."""
        urls = (file.url for task in tasks for file in files_of(task))
        with FilesAhead(urls, stores or Stores()) as files:
            for task in tasks:
                yield from _read(task, limit, columns, files)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split a large file into shares of its row groups; a row group is never split."""
        count = -(-task.size_bytes // target_bytes)
        # Both images of an update stay together: a change file or an exact commit is not split.
        if count < 2 or task.change_type is None:
            return [task]
        file = data_file(task)
        if file.share_count > 1:
            return [task]
        return [
            replace(
                task,
                size_bytes=task.size_bytes // count,
                payload=replace(file, share_index=index, share_count=count),
            )
            for index in range(count)
        ]

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Return whether a partition value of the task's file excludes all its rows."""
        if isinstance(task.payload, RewrittenFiles):
            # All rows are needed: rows of one file are compared with those of another.
            return False
        file = data_file(task)
        return not all(may_pass(_value(file, each.column), each) for each in filters)


def _read(
    task: ChangeTask, limit: BatchLimit, columns: Sequence[str] | None, files: FilesAhead
) -> Iterator[ChangeBatch]:
    if isinstance(task.payload, RewrittenFiles):
        return read_exact(task, limit, columns, files)
    return read_changes(task, limit, columns, files)


def _value(file: DataFile, name: str) -> object:
    """Return the value that all rows of a file have in a column; `UNKNOWN` if it is not known."""
    field = parse_schema(file.schema.text).find_field(name)
    if field is None or name not in file.schema.partition_columns or field.char_length:
        return UNKNOWN
    values = dict(file.partition_values)
    physical = field.physical_name(file.schema.column_mapping)
    if physical not in values:
        # An old writer may omit a removed file's values.
        return UNKNOWN
    try:
        return parse_partition_value(values[physical], arrow_field(field).type, name).as_py()
    except OverflowError:
        # Python's years end at 9999, Delta's do not.
        return UNKNOWN
