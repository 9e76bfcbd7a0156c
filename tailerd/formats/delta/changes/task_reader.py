"""Reads the tasks of Delta tables: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, groupby

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.column_filter import (
    UNKNOWN,
    ColumnFilter,
    may_pass,
    may_pass_within,
)
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.errors import BugError, MissingDataFileError
from tailerd.formats.base import split_file
from tailerd.formats.delta.changes.deleted_rows import missing_data_file, selects_nothing
from tailerd.formats.delta.changes.read import column_scans, no_columns, plan_scan, read_changes
from tailerd.formats.delta.protocol.data_file import DataFile, RowIds, TableSchema, data_file
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.rewritten_files import (
    RewrittenFiles,
    list_files,
    rewritten_files,
    select_schema,
)
from tailerd.formats.delta.protocol.schema import arrow_field, comparable_text, parse_schema
from tailerd.reading.compared_files import Columns
from tailerd.reading.compared_rows import read_compared
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.files_ahead import FilesAhead
from tailerd.rows.difference import Side
from tailerd.rows.groups import FilesToCompare
from tailerd.storage.stores import Stores


class DeltaTaskReader:
    """Reads data files and change files; see `formats.base.TaskReader`."""

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns.

        Raises:
            UnsupportedFeatureError: A column has an unsupported type.
            TableError: A column has the name of a change column.
        """
        scans = column_scans(select_schema(task), None if columns is None else tuple(columns))
        return pa.schema([field.target for field in scans])

    def column_names(self, task: ChangeTask) -> Sequence[str]:
        """Return the names of all columns, also of those with unsupported types."""
        return [field.name for field in parse_schema(select_schema(task).text).fields]

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
        return _read([task], limit, columns, FilesAhead((), stores or Stores()))

    def read_run(
        self,
        tasks: Sequence[ChangeTask],
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield the rows of tasks in order; files in a bucket are prefetched."""
        urls = (file.url for task in tasks for file in list_files(task))
        with FilesAhead(urls, stores or Stores()) as files:
            yield from _read(tasks, limit, columns, files)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split a large file into shares of its row groups; a row group is never split."""
        # Both images of an update stay together: a change file or an exact commit is not split.
        if task.size_bytes <= target_bytes or task.change_type is None:
            return [task]
        return split_file(task, data_file(task), target_bytes)

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Return whether a partition value or bounds of each of the task's files exclude its rows.

        One file of a comparison alone is not left out: its rows are compared with those of another.
        """
        if not isinstance(task.payload, RewrittenFiles):
            return _excludes(data_file(task), task.num_records, filters)
        files = (*task.payload.removed, *task.payload.added)
        return bool(files) and all(_excludes(file, None, filters) for file in files)


def _read(
    tasks: Sequence[ChangeTask],
    limit: BatchLimit,
    columns: Sequence[str] | None,
    files: FilesAhead,
) -> Iterator[ChangeBatch]:
    for is_compared, some in groupby(tasks, lambda task: isinstance(task.payload, RewrittenFiles)):
        if not is_compared:
            yield from read_changes(list(some), limit, columns, files)
            continue
        for task in some:
            yield from read_exact(task, limit, columns, files)


def _excludes(file: DataFile, rows: int | None, filters: Sequence[ColumnFilter]) -> bool:
    columns, bounds = parse_schema(file.schema.text), dict(file.bounds)
    for each in filters:
        if not may_pass(_value(file, each.column), each):
            return True
        field = columns.find_field(each.column)
        name = "" if field is None else field.physical_name(file.schema.column_mapping)
        if (found := bounds.get(name)) is not None and not may_pass_within(
            found.lower, found.upper, found.null_count, rows, each
        ):
            return True
    return False


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


ROW_ID = "_metadata.row_id"
ROW_COMMIT_VERSION = "_metadata.row_commit_version"
_ROW_IDS = (ROW_ID, ROW_COMMIT_VERSION)
"""Spark's column names; a table with a column of such a name is compared by value."""


class ExactCommit:
    """The `ComparedCommit` of a task from `exact_task`.

    Args:
        memory_bytes: Maximum memory for a deletion vector.
        files: Opens vectors.
    """

    def __init__(self, task: ChangeTask, memory_bytes: int, files: FilesAhead) -> None:
        self._payload = _comparable(rewritten_files(task))
        self._version = task.version
        self._memory_bytes = memory_bytes
        self._files = files

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

    @property
    def prefix(self) -> str:
        """Distinguishes the positions of net rows from those of the version's own commit."""
        return self._payload.prefix

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the task positions of a side's files."""
        payload = self._payload
        return payload.removed_tasks if side is Side.REMOVED else payload.added_tasks

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides."""
        fields = [scan.target for scan in column_scans(self._payload.schema, columns)]
        fields += [pa.field(name, pa.int64()) for name in self._select_row_ids(columns)]
        return pa.schema(fields)

    def scan(self, side: Side, number: int, columns: Columns = None) -> FileScan:
        """Return how to read a file: all rows that its vectors select.

        Raises:
            TableError: An old writer omitted its partition values.
        """
        file = self._file(side, number)
        scan = plan_scan(
            file,
            columns,
            self._files.open_unplanned,
            version=self._version,
            is_removed=side is Side.REMOVED,
        )
        if not (requested := self._select_row_ids(columns)):
            return scan
        ids = _id_scans(file.row_ids)
        return replace(scan, fields=(*scan.fields, *(ids[name] for name in requested)))

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Return whether the vectors of a file select no row."""
        rows = self._file(side, number).rows
        return selects_nothing(rows, self._files.open_unplanned, self._memory_bytes)

    def missing(self, url: str) -> MissingDataFileError:
        """Return the error for a missing file."""
        return missing_data_file(url)

    @cached_property
    def _has_row_ids(self) -> bool:
        fields = parse_schema(self._payload.schema.text).fields
        files = chain(self._payload.removed, self._payload.added)
        is_clear = not any(field.name in _ROW_IDS for field in fields)
        return is_clear and all(file.row_ids is not None for file in files)

    def _select_row_ids(self, columns: Columns) -> Sequence[str]:
        """Return the given columns that are row ids."""
        return [name for name in self.row_ids if columns is not None and name in columns]

    def _file(self, side: Side, number: int) -> DataFile:
        return (self._payload.removed if side is Side.REMOVED else self._payload.added)[number]


def _id_scans(ids: RowIds | None) -> dict[str, FieldScan]:
    """Return how to read the row-tracking columns of a file."""
    if ids is None:
        raise BugError("The ids of rows were requested where they are not known.")
    return {
        ROW_ID: FieldScan(
            target=pa.field(ROW_ID, pa.int64()),
            name=ids.id_column,
            first_default=ids.first_id,
        ),
        ROW_COMMIT_VERSION: FieldScan(
            target=pa.field(ROW_COMMIT_VERSION, pa.int64()),
            name=ids.version_column,
            default=pa.scalar(ids.commit_version, pa.int64()),
        ),
    }


def read_exact(
    task: ChangeTask, limit: BatchLimit, columns: Sequence[str] | None, files: FilesAhead
) -> Iterator[ChangeBatch]:
    """Read the change rows of an exact commit; blocking, for worker threads and executors.

    Args:
        columns: Logical names to return, as far as the version has them; None for all.
        files: Opens the files.

    Raises:
        TableError: A file is missing or damaged, or the table has no columns.
    """
    payload = rewritten_files(task)
    if not parse_schema(payload.schema.text).fields:
        raise no_columns(task.version, next(chain(payload.removed, payload.added)).url)
    # Columns that are compared, but cannot be delivered, must not be wanted.
    column_scans(payload.schema, None if columns is None else tuple(columns))
    commit = ExactCommit(task, limit.memory_bytes, files)
    batches = read_compared(task, commit, limit, columns, files)
    return map(_as_updates, batches) if payload.are_updates else batches


def _comparable(payload: RewrittenFiles) -> RewrittenFiles:
    def change(schema: TableSchema) -> TableSchema:
        text = comparable_text(schema.text)
        return schema if text is schema.text else replace(schema, text=text)

    return replace(
        payload,
        schema=change(payload.schema),
        removed=tuple(replace(file, schema=change(file.schema)) for file in payload.removed),
        added=tuple(replace(file, schema=change(file.schema)) for file in payload.added),
    )


_IMAGES = {
    ChangeType.DELETE.value: ChangeType.UPDATE_PREIMAGE,
    ChangeType.INSERT.value: ChangeType.UPDATE_POSTIMAGE,
}


def _as_updates(batch: ChangeBatch) -> ChangeBatch:
    kinds = batch.change_type
    if isinstance(kinds, ChangeType):
        return replace(batch, change_type=_IMAGES.get(kinds.value, kinds))
    codes = kinds if pa.types.is_dictionary(kinds.type) else kinds.dictionary_encode()
    words = pa.array([str(_IMAGES.get(word, word)) for word in codes.dictionary.to_pylist()])
    # Encoded again, because two words may have become one.
    named = pa.DictionaryArray.from_arrays(codes.indices, words).cast(pa.string())
    return replace(batch, change_type=named.dictionary_encode())
