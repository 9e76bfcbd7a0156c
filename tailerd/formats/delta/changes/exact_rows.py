"""An exact commit of a Delta table, for `reading.compared_rows` to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import MissingDataFileError
from tailerd.formats.delta.changes.deleted_rows import missing_data_file, selects_nothing
from tailerd.formats.delta.changes.read import column_scans, no_columns, scan_of
from tailerd.formats.delta.protocol.data_file import DataFile
from tailerd.formats.delta.protocol.rewritten_files import rewritten_files
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.reading.compared_files import Columns
from tailerd.reading.compared_rows import read_compared
from tailerd.reading.file_scan import FileScan
from tailerd.reading.files_ahead import FilesAhead
from tailerd.rows.difference import Side
from tailerd.rows.groups import FilesToCompare


class ExactCommit:
    """The `ComparedCommit` of a task from `exact_task`.

    Args:
        memory_bytes: What a deletion vector must fit.
        files: Opens vectors.
    """

    def __init__(self, task: ChangeTask, memory_bytes: int, files: FilesAhead) -> None:
        self._payload = rewritten_files(task)
        self._version = task.version
        self._memory_bytes = memory_bytes
        self._files = files

    @property
    def groups(self) -> Sequence[FilesToCompare]:
        """Its files; each is in one group."""
        return self._payload.groups

    @property
    def key(self) -> Sequence[str]:
        """Columns whose values make a deleted and an inserted row one update; empty for none."""
        return self._payload.key

    @property
    def prefix(self) -> str:
        """What tells the places of net rows from those of the version's own commit."""
        return self._payload.prefix

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the positions that the tasks of a side's files would have."""
        payload = self._payload
        return payload.removed_tasks if side is Side.REMOVED else payload.added_tasks

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides."""
        return pa.schema([scan.target for scan in column_scans(self._payload.schema, columns)])

    def scan(self, side: Side, number: int, columns: Columns = None) -> FileScan:
        """Return how a file is read: all rows that its vectors let through.

        Raises:
            TableError: An old writer left its partition values out.
        """
        return scan_of(
            self._file(side, number),
            columns,
            self._files.open_beside,
            version=self._version,
            is_removed=side is Side.REMOVED,
        )

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Tell whether the vectors of a file leave no row of it."""
        rows = self._file(side, number).rows
        return selects_nothing(rows, self._files.open_beside, self._memory_bytes)

    def missing(self, url: str) -> MissingDataFileError:
        """Return the error for a file that is gone."""
        return missing_data_file(url)

    def _file(self, side: Side, number: int) -> DataFile:
        return (self._payload.removed if side is Side.REMOVED else self._payload.added)[number]


def read_exact(
    task: ChangeTask, limit: BatchLimit, columns: Sequence[str] | None, files: FilesAhead
) -> Iterator[ChangeBatch]:
    """Read the change rows of an exact commit; blocking, for worker threads and executors.

    Args:
        columns: Logical names to give, as far as the version has them; None for all.
        files: Opens the files.

    Raises:
        TableError: A file is missing or damaged, or the table has no columns.
    """
    payload = rewritten_files(task)
    if not parse_schema(payload.schema.text).fields:
        raise no_columns(task.version, next(chain(payload.removed, payload.added)).url)
    commit = ExactCommit(task, limit.memory_bytes, files)
    return read_compared(task, commit, limit, columns, files)
