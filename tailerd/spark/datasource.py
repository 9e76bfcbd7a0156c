"""`format("tailerd")`: Delta's row changes as a PySpark data source.

Options of a read, batch or stream; ranges are inclusive:

- `path`
- `startingVersion` (a number or `latest`) or `startingTimestamp`
- `endingVersion`, or for a batch `endingTimestamp`
- `maxFilesPerTrigger`, `maxBytesPerTrigger`: how much one micro-batch admits; batches have no limit
- `changes`: `auto` (exactly the rows that changed), `cdf`, `files` or `net`
- `snapshot`: `true` returns the rows of the starting version first
- `schemaVersion`: returns the columns of that version; an error that asks for it names the number
- `columns`: names of the table's columns to read, `a,b`; Spark does not pass a Python source the
  columns that a query needs
- `identity`: names of columns that identify a row, `a,b`: a deleted and an inserted row of one
  commit with the same values there are an update, where rows are compared
- `pollInterval`, `allowedPaths` (`/a,/b`, or a JSON list), `partitionTimezone`: as `poll_interval`,
  `allowed_paths` and `partition_timezone` in a configuration file
- `ledger`: a folder or URL where a format without history (Kartothek) keeps what was observed, so
  that a query can resume after a restart

Without a start a stream begins with the snapshot of the newest version, as Delta's own source
does, and a batch begins at the earliest commit in the log. A batch with `snapshot` and no start is
the table as it is at the end. The schema is the table's at the end of the range (of a stream: at
its head when the query starts), then `_change_type`, `_commit_version`, `_commit_timestamp`. A
user-defined schema (`.schema(...)`) selects columns by name.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tailerd.changefeed.offset import Version
from tailerd.errors import UsageError
from tailerd.spark.options import ReadOptions
from tailerd.spark.worker_edge import all_errors_travel
from tailerd.storage.stores import StoreSettings

_Source = TypeVar("_Source", bound=DataSource)


def configured(source: type[_Source], storage: StoreSettings) -> type[_Source]:
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
    """How tables are reached, if set by `configured`; otherwise as the environment says."""

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
        from tailerd.spark.batch_reader import FilteringBatchReader, TailerdBatchReader

        options = self._read_options()
        may_drop = self._schema_version is None or bool(options.columns)
        kind = FilteringBatchReader if self._pushes_filters else TailerdBatchReader
        return kind(options, schema, may_drop=may_drop)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from tailerd.spark.stream_reader import TailerdStreamReader

        options = self._read_options()
        # Rows of any version fit columns selected by name, as long as their types do.
        version = None if options.columns else self._schema_version
        return TailerdStreamReader(options, schema, version)

    def _read_options(self) -> ReadOptions:
        options = ReadOptions.parse(self.options, self.storage)
        if options.schema_version is not None and self._schema_version is None:
            raise UsageError(
                "The option schemaVersion and .schema(...) contradict each other, because both say"
                " which columns there are.",
                remedy="Give one of them.",
            )
        if options.columns and self._schema_version is None:
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
