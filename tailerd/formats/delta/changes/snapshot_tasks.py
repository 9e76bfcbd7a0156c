"""Plans the tasks of a snapshot: its files in the order of their keys, whatever the log's layout.

A step covers a range of keys. The range alone determines its files, so a restart that finds other
checkpoints, or none, reads the same files.
"""

from __future__ import annotations

import numpy as np

from tailerd.changefeed.change_task import (
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    TaskGroup,
)
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.formats.delta.changes.snapshot_files import SnapshotFiles
from tailerd.formats.delta.protocol.data_file import ALL_ROWS, FORMAT, VERSIONS, DataFile, RowFilter
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.live_file import LiveFile


class SnapshotTasks:
    """Plans one snapshot.

    Args:
        files: Its files, from the log or from a spool.
        paths: Resolves the files' places.
    """

    def __init__(self, files: SnapshotFiles, paths: DataPaths) -> None:
        self._files = files
        self.version = Version(files.version)
        self.schema = files.schema
        self._timestamp_us = files.timestamp_ms * 1000
        self._paths = paths

    def furthest(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return how far one step from `start` may go: at least one file, or past the snapshot."""
        keys, sizes = self._files.sorted_files()
        first = int(np.searchsorted(keys, np.uint64(start.position)))
        fitting = np.cumsum(sizes[first : first + limit.max_files]) <= limit.max_bytes
        count = max(1, int(np.count_nonzero(fitting)))
        if first + count >= len(keys):
            return start.after_version(VERSIONS)
        return start.at(int(keys[first + count]))

    async def group(self, start: Offset, end: Offset) -> TaskGroup:
        """Return the tasks of one step.

        Raises:
            TableError: The log cannot be read, or names a file outside the table.
        """
        until = end.position if end.version == start.version else None
        tasks: list[ChangeTask] = []
        async for files in self._files.between(start.position, until):
            tasks.extend(self._task(file, start.table_id) for file in files)
        tasks.sort(key=lambda task: task.position)
        return TaskGroup(
            start=start,
            end=end,
            version=self.version,
            timestamp_us=self._timestamp_us,
            change_source=ChangeSourceKind.SNAPSHOT,
            tasks=tuple(tasks),
        )

    def _task(self, file: LiveFile, table_id: str) -> ChangeTask:
        rows = ALL_ROWS
        if file.deletion_vector is not None:
            rows = RowFilter(exclude=self._paths.vector(file.deletion_vector))
        return ChangeTask(
            version=self.version,
            timestamp_us=self._timestamp_us,
            position=file.key,
            change_source=ChangeSourceKind.SNAPSHOT,
            change_type=ChangeType.INSERT,
            size_bytes=file.size_bytes,
            format=FORMAT,
            payload=DataFile(
                url=self._paths.resolve(file.path),
                schema=self._files.schema,
                partition_values=file.partition_values,
                rows=rows,
            ),
            num_records=file.num_records,
            table_id=table_id,
        )
