"""`spark.read.format("tailerd")`: the changes between two versions, or a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Version
from tailerd.formats.base import ChangeSource
from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.change_range import batch_range, tasks_between
from tailerd.spark.options import ReadOptions
from tailerd.spark.partitions import pack, read_partition
from tailerd.spark.pruning import column_filters, first_version, last_version, may_match
from tailerd.spark.source_loop import SourceLoop
from tailerd.spark.table_source import open_source
from tailerd.spark.worker_edge import all_errors_travel
from tailerd.spark.worker_stores import worker_stores


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
        start, end = await self._narrowed(source, start, end)
        tasks = await tasks_between(source, start, end) if start.is_before(end) else []
        filters = column_filters(self._filters)
        return [task for task in tasks if may_match(task, filters)]

    async def _narrowed(
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
