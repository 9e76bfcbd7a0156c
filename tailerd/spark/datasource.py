"""`format("tailerd")`: Delta's row changes as a PySpark data source.

Options of a read, batch or stream; ranges are inclusive:

- `path`
- `startingVersion` (a number or `latest`) or `startingTimestamp`
- `endingVersion`, or for a batch `endingTimestamp`
- `maxFilesPerTrigger`, `maxBytesPerTrigger`: how much one micro-batch admits; batches have no limit
- `changes`: `auto` (exactly the rows that changed), `cdf`, `files` or `net`
- `snapshot`: `true` returns the rows of the starting version first
- `schemaVersion`: returns the columns of that version; an error that asks for it names the number
- `columns`: names of the table's columns to read, `a,b.c`; Spark does not pass a Python source the
  columns that a query needs
- `rename` (`a=x,b=y`), `where`, `mask` (`a=hash,b=truncate:year`), `maskKey`, `unchanged`: as in
  `tailerd.changes`
- `identity`: names of columns that identify a row, `a,b`: a deleted and an inserted row of one
  commit with the same values there are an update, where rows are compared
- `pollInterval`, `allowedPaths` (`/a,/b`, or a JSON list), `partitionTimezone`, `formatOptions`
  (`a=x,b=y`): as `poll_interval`, `allowed_paths`, `partition_timezone` and `format_options` in a
  configuration file
- `ledger`: a folder or URL where a format without history (Kartothek) keeps what was observed, so
  that a query can resume after a restart

Without a start a stream begins with the snapshot of the newest version, as Delta's own source
does, and a batch begins at the earliest commit in the log. A batch with `snapshot` and no start is
the table as it is at the end. The schema is the table's at the end of the range (of a stream: at
its head when the query starts), then `_change_type`, `_commit_version`, `_commit_timestamp`. A
user-defined schema (`.schema(...)`) selects columns by name.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from tailerd.changefeed.change_batch import CHANGE_COLUMNS, COMMIT_TIMESTAMP, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.column_filter import UNKNOWN, ColumnFilter, Comparison, may_pass
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Version
from tailerd.errors import UsageError
from tailerd.formats.base import ChangeSource
from tailerd.formats.detect import find_reader
from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.change_range import batch_range, tasks_between
from tailerd.spark.options import ReadOptions
from tailerd.spark.partitions import pack, read_partition
from tailerd.spark.source_loop import SourceLoop
from tailerd.spark.table_source import open_source
from tailerd.spark.worker_edge import all_errors_travel, worker_stores
from tailerd.storage.stores import StoreSettings

_Source = TypeVar("_Source", bound=DataSource)


def configure_source(source: type[_Source], storage: StoreSettings) -> type[_Source]:
    """Return a data source, to be registered, that reaches its tables with these settings.

    Spark's Java keeps a registered class pickled, and passes it to the Python processes of its
    queries. A class that belongs to no module is pickled by value: the settings reach these
    processes without appearing in an option, plan, file or environment that others may read.
    """
    return type(source.__name__, (source,), {"storage": storage})


@all_errors_travel
class TailerdDataSource(DataSource):
    """Implements Spark's format `tailerd`. Options are checked before anything is opened."""

    # Parts are imported where they are used: every executor task and every commit of the sink
    # starts or wakes a Python process that needs only one of them.
    storage: ClassVar[StoreSettings | None] = None
    """How tables are reached, if set by `configure_source`; otherwise as the environment says."""

    _schema_version: Version | None = None
    _pushes_filters = False

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "tailerd"

    def schema(self) -> StructType:
        """Return the table's columns at the end of the range and the three change columns.

        Raises:
            UsageError: An option is wrong.
            TableError, StorageError: The table cannot be served.
        """
        from tailerd.spark.arrow_schema import spark_schema
        from tailerd.spark.source_loop import SourceLoop
        from tailerd.spark.table_source import declared_columns

        options = ReadOptions.parse(self.options, self.storage)
        loop = SourceLoop()
        try:
            columns, version = loop.call(declared_columns(options))
        finally:
            loop.close()
        # Spark calls this only where the user gave no schema, and pickles this object afterwards.
        self._schema_version = version
        return spark_schema(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from tailerd.spark.datasource import FilteringBatchReader, TailerdBatchReader

        options = self._read_options()
        may_drop = self._schema_version is None or options.has_columns
        kind = FilteringBatchReader if self._pushes_filters else TailerdBatchReader
        return kind(options, schema, may_drop=may_drop)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from tailerd.spark.stream_reader import TailerdStreamReader

        options = self._read_options()
        # Rows of any version fit columns selected by name, as long as their types do.
        version = None if options.has_columns else self._schema_version
        return TailerdStreamReader(options, schema, version)

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.parse(self.options, self.storage)
        if options.schema_version is not None and self._schema_version is None:
            raise UsageError(
                "The option schemaVersion and .schema(...) contradict each other, because both say"
                " which columns there are.",
                remedy="Give one of them.",
            )
        if options.has_columns and self._schema_version is None:
            raise UsageError(
                "The option columns and .schema(...) contradict each other, because both say which"
                " columns there are.",
                remedy="Give one of them.",
            )
        return options


class FilteringDataSource(TailerdDataSource):
    """The same with `spark.sql.python.filterPushdown.enabled`.

    Without that setting PySpark rejects a reader that accepts filters.
    """

    _pushes_filters = True


@all_errors_travel
class TailerdBatchReader(DataSourceReader):
    """Plans on the driver, reads on executors. Picklable."""

    def __init__(self, options: ReadOptions, schema: StructType, *, may_drop: bool) -> None:
        self._options = options
        self._target = declared_schema(schema)
        self._may_drop = may_drop
        self._filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions that hold the rows of the range.

        Raises:
            TableError, StorageError, UsageError: The range cannot be read.
        """
        loop = SourceLoop()
        try:
            return pack(loop.call(self._tasks()))
        finally:
            loop.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's change rows; on an executor."""
        stores = worker_stores(self._options.storage)
        return read_partition(partition, self._target, stores, may_drop=self._may_drop)

    async def _tasks(self) -> list[ChangeTask]:
        source = await open_source(self._options)
        start, end = await batch_range(source, self._options)
        start, end = await self._narrow_range(source, start, end)
        tasks = await tasks_between(source, start, end) if start.is_before(end) else []
        filters = column_filters(self._filters)
        return [task for task in tasks if may_match(task, filters)]

    async def _narrow_range(
        self, source: ChangeSource, start: Offset, end: Offset
    ) -> tuple[Offset, Offset]:
        """Leave out commits at both ends whose rows cannot pass the filters."""
        first, last = first_version(self._filters), last_version(self._filters)
        if last is not None and last < source.version_before(end.version):
            end = replace(end, version=source.next_version(Version(max(last, BEFORE_ALL))))
        if first >= end.version:
            return end, end
        if first > start.version:
            # The table may have been replaced before that version: then it has another id.
            start = await source.offset_at(
                source.next_version(source.version_before(Version(first)))
            )
        return start, end


class FilteringBatchReader(TailerdBatchReader):
    """The same for a session that pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters; Spark also applies all of them to the rows."""
        self._filters = list(filters)
        return filters


# A filter excludes a task only if it is certainly false for every row; Spark filters the remaining
# rows as usual.

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def may_match(task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
    """Return whether rows of a task can pass all filters."""
    others = []
    for each in filters:
        if each.column not in CHANGE_COLUMNS:
            others.append(each)
        elif not may_pass(_change_value(task, each.column), each):
            return False
    return not (others and find_reader(task).excludes(task, others))


def first_version(filters: Iterable[Filter]) -> int:
    """Return the first version whose commit can pass the filters on `_commit_version`."""
    first = 0
    for each in filters:
        match each:
            case GreaterThan(attribute=(name,), value=int(value)) if name == COMMIT_VERSION:
                first = max(first, value + 1)
            case (
                GreaterThanOrEqual(attribute=(name,), value=int(value))
                | EqualTo(attribute=(name,), value=int(value))
            ) if name == COMMIT_VERSION:
                first = max(first, value)
            case _:
                pass
    return first


def last_version(filters: Iterable[Filter]) -> int | None:
    """Return the last version whose commit can pass them; None if they set no upper bound."""
    lasts: list[int] = []
    for each in filters:
        match each:
            case LessThan(attribute=(name,), value=int(value)) if name == COMMIT_VERSION:
                lasts.append(value - 1)
            case (
                LessThanOrEqual(attribute=(name,), value=int(value))
                | EqualTo(attribute=(name,), value=int(value))
            ) if name == COMMIT_VERSION:
                lasts.append(value)
            case _:
                pass
    return min(lasts, default=None)


def column_filters(filters: Iterable[Filter]) -> list[ColumnFilter]:
    """Return the filters on one top-level column that can leave tasks out; others are left out."""
    return [found for each in filters if (found := _column_filter(each)) is not None]


def _column_filter(each: Filter) -> ColumnFilter | None:
    match each:
        case IsNull(attribute=(name,)):
            return ColumnFilter(column=name, comparison=Comparison.IS_NULL)
        case IsNotNull(attribute=(name,)):
            return ColumnFilter(column=name, comparison=Comparison.IS_NOT_NULL)
        case In(attribute=(name,), value=choices):
            return _compare_filter(name, Comparison.IN, tuple(choices))
        case (
            EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value)
        ):
            # `EqualNullSafe` treats two nulls as equal.
            return None if value is None else _compare_filter(name, Comparison.EQUAL, (value,))
        case GreaterThan(attribute=(name,), value=value):
            return _compare_filter(name, Comparison.GREATER, (value,))
        case GreaterThanOrEqual(attribute=(name,), value=value):
            return _compare_filter(name, Comparison.AT_LEAST, (value,))
        case LessThan(attribute=(name,), value=value):
            return _compare_filter(name, Comparison.LESS, (value,))
        case LessThanOrEqual(attribute=(name,), value=value):
            return _compare_filter(name, Comparison.AT_MOST, (value,))
        case _:
            return None


def _compare_filter(
    name: str, comparison: Comparison, values: tuple[object, ...]
) -> ColumnFilter | None:
    """Return a filter; commit times become numbers, None if that fails."""
    if name == COMMIT_TIMESTAMP:
        values = tuple(_microseconds(value) for value in values)
        if UNKNOWN in values:
            return None
    return ColumnFilter(column=name, comparison=comparison, values=values)


def _microseconds(value: object) -> object:
    if value is None:
        return None
    # Spark compares a time without a zone in the session's zone, which is not known here.
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return UNKNOWN


def _change_value(task: ChangeTask, name: str) -> object:
    """Return the value that all rows of a task have in a change column."""
    if name == COMMIT_VERSION:
        return int(task.version)
    if name == COMMIT_TIMESTAMP:
        return task.timestamp_us
    return UNKNOWN if task.change_type is None else task.change_type.value
