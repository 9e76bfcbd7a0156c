"""Reads change tasks: maps the table's columns to those of a file, which `reading` then reads."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import CHANGE_COLUMNS, CHANGE_TYPE, VARIANT_FIELD, ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import number_positions
from tailerd.errors import (
    BugError,
    CorruptLogError,
    FileMissingError,
    TableError,
    UsageError,
)
from tailerd.formats.delta.changes.deleted_rows import OpenFile, missing_data_file, select_rows
from tailerd.formats.delta.protocol.data_file import ALL_ROWS, DataFile, TableSchema, data_file
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.schema import (
    ArrayType,
    CharLengths,
    DataType,
    MapType,
    StructField,
    StructType,
    arrow_field,
    parse_schema,
)
from tailerd.formats.view_reader import view_filters
from tailerd.reading.file_scan import FieldScan, FileScan, FileShare
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.small_files import read_files
from tailerd.remedies import LEAVE_OUT, START_AFTER
from tailerd.storage.stores import Stores


def read_changes(
    tasks: Sequence[ChangeTask],
    limit: BatchLimit = DEFAULT_BATCH_LIMIT,
    columns: Sequence[str] | None = None,
    files: FilesAhead | None = None,
) -> Iterator[ChangeBatch]:
    """Read the change rows of tasks in order; blocking, for worker threads and executors.

    Args:
        columns: Logical names to read, as far as the task's version has them; None for all.
        files: Opens the tasks' files and those read after them; by default with stores configured
            by the environment.

    Raises:
        TableError: A file is missing or damaged.
    """
    files = files or FilesAhead((), Stores())
    names = None if columns is None else tuple(columns)

    def open_file(url: str) -> BinaryIO:
        try:
            return files.open(url)
        except FileMissingError as error:
            raise missing_data_file(url) from error

    scans = (file_scan(task, names, files.open_unplanned) for task in tasks)
    read = read_files(scans, len(tasks), limit, open_file)
    for number, (rows, changes, positions) in read:
        task = tasks[number]
        file = data_file(task)
        change = task.change_type if changes is None else changes
        if change is None:
            raise BugError(f"The task of {file.url} does not say which change it is.")
        if not parse_schema(file.schema.text).fields:
            raise no_columns(task.version, file.url)
        yield ChangeBatch(
            rows=rows,
            change_type=change,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            positions=number_positions(task, task.position, positions),
        )


def file_scan(
    task: ChangeTask, columns: tuple[str, ...] | None, open_vectors: OpenFile
) -> FileScan:
    """Return what to read of a task's file."""
    scan = plan_scan(
        data_file(task),
        columns,
        open_vectors,
        version=task.version,
        is_removed=task.change_type is ChangeType.DELETE,
    )
    return replace(
        scan,
        change_column=CHANGE_TYPE if task.change_type is None else "",
        filters=_find_filters(task.view, data_file(task).schema, columns),
    )


@functools.lru_cache(maxsize=64)
def _find_filters(
    view: object, schema: TableSchema, columns: tuple[str, ...] | None
) -> tuple[ColumnFilter, ...]:
    fields = column_scans(schema, columns) if view is not None else ()
    return view_filters(view, pa.schema([field.target for field in fields]))


def plan_scan(
    file: DataFile,
    columns: tuple[str, ...] | None,
    open_vectors: OpenFile,
    *,
    version: Version,
    is_removed: bool,
) -> FileScan:
    """Return what to read of a data file.

    Args:
        is_removed: Whether an old writer may have omitted its partition values.

    Raises:
        TableError: The partition values are missing.
    """
    fields = list(column_scans(file.schema, columns))
    partitions = frozenset(file.schema.partition_columns)
    for index, field in enumerate(fields):
        if field.target.name in partitions:
            if is_removed and not file.partition_values:
                raise _explain_values(file, version)
            constant = _partition_value(file, field.target, version)
            if field.pad_to is not None:
                constant = pc.utf8_rpad(constant, width=field.pad_to)
            fields[index] = FieldScan(target=field.target, constant=constant)
    return FileScan(
        url=file.url,
        fields=tuple(fields),
        select_rows=None
        if file.rows == ALL_ROWS
        else partial(select_rows, file.rows, open_vectors),
        share=FileShare(index=file.share_index, count=file.share_count),
        table_names=_names_in_files(file.schema),
    )


def _partition_value(file: DataFile, target: pa.Field, version: Version) -> pa.Scalar:
    schema, values = parse_schema(file.schema.text), dict(file.partition_values)
    names = {
        name: item.physical_name(file.schema.column_mapping)
        for name in file.schema.partition_columns
        if (item := schema.find_field(name)) is not None
    }
    name = names.get(target.name, target.name)
    if name not in values and (foreign := sorted(values.keys() - set(names.values()))):
        raise _foreign_value(file, version, target.name, foreign[0])
    return parse_partition_value(values.get(name), target.type, target.name)


def no_columns(version: Version, url: str) -> CorruptLogError:
    """Return the error for rows of a table without columns."""
    return CorruptLogError(
        f"Version {version} has rows in {url}, and the table has no columns"
        " then, so they have no columns.",
        remedy="The writer is broken: restore the log entry from a backup.",
    )


def _explain_values(file: DataFile, version: Version) -> TableError:
    return TableError(
        f"Version {version} removes {file.url} without its partition values,"
        " which an old writer may leave out, so its deleted rows cannot be read in full.",
        remedy=f"Either {START_AFTER}, or {LEAVE_OUT}.",
    )


def _foreign_value(file: DataFile, version: Version, column: str, key: str) -> CorruptLogError:
    return CorruptLogError(
        f"Version {version} has no partition value of the column {column} for {file.url}, but one"
        f" of {key!r}, which is not a partition column in this spelling.",
        remedy=f"Its writer is broken: rewrite the file, {START_AFTER}, or {LEAVE_OUT}.",
    )


@functools.lru_cache(maxsize=256)
def column_scans(
    schema: TableSchema, columns: tuple[str, ...] | None = None
) -> tuple[FieldScan, ...]:
    """Return how to read each column from a data file, in schema order.

    Args:
        columns: Logical names to read, as far as this version of the table has them; None for all.

    Raises:
        UnsupportedFeatureError: A column has an unsupported type.
        TableError: A column has the name of a change column.
    """
    fields = parse_schema(schema.text).fields
    if columns is not None:
        requested = frozenset(columns)
        fields = tuple(field for field in fields if field.name in requested)
    for field in fields:
        if field.name in CHANGE_COLUMNS:
            raise TableError(
                f"The table has a column {field.name}, and change rows carry one of that name too.",
                remedy=f"Rename it in the table, or {LEAVE_OUT}.",
            )
    return tuple(_field(field, schema.column_mapping) for field in fields)


@functools.lru_cache(maxsize=256)
def _names_in_files(schema: TableSchema) -> frozenset[str]:
    """Return the names of all columns of a table in its files."""
    fields = parse_schema(schema.text).fields
    return frozenset(field.physical_name(schema.column_mapping) for field in fields)


def _field(field: StructField, mapping: str, lengths: CharLengths = ()) -> FieldScan:
    """Return how to read a field; `lengths` are those of the CHAR types around it."""
    lengths = lengths or field.char_lengths
    return FieldScan(
        target=arrow_field(field),
        name=field.physical_name(mapping),
        field_id=field.column_id if mapping == "id" else None,
        children=_children(field.type, arrow_field(field), mapping, lengths),
        pad_to=_padded_length(arrow_field(field).type, lengths),
    )


def _children(
    kind: DataType, target: pa.Field, mapping: str, lengths: CharLengths
) -> tuple[FieldScan, ...]:
    match kind:
        case StructType(fields):
            return tuple(_field(item, mapping, _within(lengths, item.name)) for item in fields)
        case ArrayType(element, _):
            return (_part(element, target.type.value_field, mapping, _within(lengths, "element")),)
        case MapType(key, value, _):
            return (
                _part(key, target.type.key_field, mapping, _within(lengths, "key")),
                _part(value, target.type.item_field, mapping, _within(lengths, "value")),
            )
        case _ if (target.metadata or {}).items() >= VARIANT_FIELD.items():
            return tuple(
                FieldScan(target=part, name=part.name)
                for part in (target.type.field(0), target.type.field(1))
            )
        case _:
            return ()


def _part(kind: DataType, target: pa.Field, mapping: str, lengths: CharLengths) -> FieldScan:
    return FieldScan(
        target=target,
        children=_children(kind, target, mapping, lengths),
        pad_to=_padded_length(target.type, lengths),
    )


def _padded_length(kind: pa.DataType, lengths: CharLengths) -> int | None:
    return dict(lengths).get(()) if pa.types.is_string(kind) else None


def _within(lengths: CharLengths, name: str) -> CharLengths:
    return tuple((path[1:], length) for path, length in lengths if path[:1] == (name,))


def rows_schema(schema: TableSchema, columns: tuple[str, ...] | None = None) -> pa.Schema:
    """Return the Arrow schema of rows read under a table schema, without change columns.

    Raises:
        TableError: As `column_scans`.
        UsageError: A column in `columns` does not exist.
    """
    # A dict keeps the order and is fast to look up.
    names = dict.fromkeys(field.name for field in parse_schema(schema.text).fields)
    if unknown := [name for name in columns or () if name not in names]:
        raise UsageError(
            f"There is no column {unknown[0]!r}; the table has {', '.join(names)}.",
            remedy="Check the spelling; names are case-sensitive.",
        )
    return pa.schema([field.target for field in column_scans(schema, columns)])
