"""The steps of a Delta table: their common part, snapshots, and differences of two versions."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask, ChangeType
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.formats.delta.changes.net_changes import NetChanges
from tailerd.formats.delta.changes.partition_zone import PartitionZone
from tailerd.formats.delta.changes.read import rows_schema
from tailerd.formats.delta.changes.snapshot_files import SnapshotFiles
from tailerd.formats.delta.protocol.data_file import (
    ALL_ROWS,
    FORMAT,
    DataFile,
    RowFilter,
    TableSchema,
)
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.rewritten_files import list_files
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.table_log import StepPlan


@functools.lru_cache(maxsize=256)
def find_rows_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of rows; the same object for the same schema, to compare it quickly."""
    return rows_schema(schema, None)


@dataclass(kw_only=True)
class DeltaStep(StepPlan):
    """A step of a Delta table.

    Attributes:
        zone: Of partition timestamps without one.
    """

    zone: PartitionZone

    def local_files(self, tasks: Sequence[ChangeTask]) -> Iterable[str]:
        """Yield the local data files and deletion vectors of tasks."""
        for file in (file for task in tasks for file in list_files(task)):
            if file.url.startswith("/"):
                yield file.url
            for vector in (file.rows.include, file.rows.exclude):
                if vector is not None and vector.url.startswith("/"):
                    yield vector.url


@dataclass(kw_only=True)
class DeltaSnapshot(DeltaStep):
    """Plans a snapshot: its files in the order of their keys, for any layout of the log.

    A step covers a range of keys. The range alone determines its files, so a restart that finds
    other checkpoints, or none, reads the same files.

    Attributes:
        files: Its files, from the log or from a spool.
        paths: Resolves the files' locations.
    """

    files: SnapshotFiles
    paths: DataPaths

    async def fit(self, start: int, limit: ReadLimit) -> int | None:
        """Return the key of the first file that does not fit the limit; None if all do."""
        keys, sizes = self.files.sorted_files()
        first = int(np.searchsorted(keys, np.uint64(start)))
        fitting = np.cumsum(sizes[first : first + limit.max_files]) <= limit.max_bytes
        end = first + max(1, int(np.count_nonzero(fitting)))
        return None if end >= len(keys) else int(keys[end])

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the tasks of a range of keys.

        Raises:
            TableError: The log cannot be read, or names a file outside the table.
        """
        tasks: list[ChangeTask] = []
        async for files in self.files.between(start, until):
            tasks.extend(map(self._task, files))
        tasks.sort(key=lambda task: task.position)
        yield self.zone.apply(tasks)

    def _task(self, file: LiveFile) -> ChangeTask:
        rows = ALL_ROWS
        if file.deletion_vector is not None:
            rows = RowFilter(exclude=self.paths.vector(file.deletion_vector))
        return ChangeTask(
            version=self.version,
            timestamp_us=self.timestamp_us,
            position=file.key,
            change_source=ChangeSourceKind.SNAPSHOT,
            change_type=ChangeType.INSERT,
            size_bytes=file.size_bytes,
            format=FORMAT,
            payload=DataFile(
                url=self.paths.resolve(file.path),
                schema=self.files.schema,
                partition_values=file.partition_values,
                rows=rows,
            ),
            num_records=file.num_records,
            table_id=self.table_id,
        )

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        """Yield the schema of the version."""
        yield start, self.version, find_rows_schema(self.files.schema)


@dataclass(kw_only=True)
class DeltaDifference(DeltaStep):
    """The net change between two offsets. Its time is known once its tasks are.

    Attributes:
        find_time_ms: Returns the time of its version, given the state of the table there.
    """

    differences: NetChanges
    start: Offset
    end: Offset
    find_time_ms: Callable[[TableState], Awaitable[int]]

    async def tasks(self, start: int, until: int | None) -> AsyncIterator[Sequence[ChangeTask]]:
        """Yield the one task, if rows differ."""
        group = await self.differences.group(self.start, self.end, self.find_time_ms)
        self.timestamp_us = group.timestamp_us
        yield self.zone.apply(group.tasks)

    async def schemas(self, start: int) -> AsyncIterator[tuple[int, Version, pa.Schema]]:
        """Yield the schema of the end version, for all rows."""
        schema = await self.differences.schema(self.start, self.end)
        yield start, self.version, find_rows_schema(schema)
