"""The files of an exact commit, read as often as comparing them takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import rows_of_columns
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import FileMissingError
from tailerd.formats.delta.changes.deleted_rows import missing_data_file, selects_nothing
from tailerd.formats.delta.changes.read import column_scans, scan_of
from tailerd.formats.delta.protocol.data_file import DataFile
from tailerd.formats.delta.protocol.rewritten_files import rewritten_files
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.parquet import read_positioned
from tailerd.reading.parquet_bounds import footer_bounds
from tailerd.reading.row_selection import RowSelection
from tailerd.rows.difference import Side
from tailerd.rows.exact import PositionedRows
from tailerd.rows.groups import ColumnBounds, FileBounds
from tailerd.rows.hash_kernels import Rows

LEAST_MEMORY_BYTES = 16 * 1024 * 1024
"""With less, files would be read many times over."""

Columns = tuple[str, ...] | None
"""Logical names, as far as the version has them; None for all."""


class _AbandonedError(Exception):
    """Nobody wants the rows any more; raised in place of reading on."""


class CandidateFiles:
    """Reads the files of one exact commit; what was read first is kept as far as memory allows.

    Args:
        task: From `exact_task`.
        limit: Of a batch. Half of `working_bytes` is for rows that are kept, half for comparing.
        files: Opens them.
    """

    def __init__(self, task: ChangeTask, limit: BatchLimit, files: FilesAhead) -> None:
        self.payload = rewritten_files(task)
        self.limit = limit
        self.working_bytes = max(LEAST_MEMORY_BYTES, limit.working_bytes // 2)
        self._version = task.version
        self._files = files
        self._opened: set[str] = set()
        self._kept: dict[tuple[Side, int], list[PositionedRows]] = {}
        self._free_bytes = self.working_bytes

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides."""
        return pa.schema([scan.target for scan in column_scans(self.payload.schema, columns)])

    def file(self, side: Side, number: int) -> DataFile:
        """Return one of the files."""
        return (self.payload.removed if side is Side.REMOVED else self.payload.added)[number]

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Tell whether the vectors of a file leave no row of it, so that it need not be read."""
        rows = self.file(side, number).rows
        return selects_nothing(rows, self._files.open_beside, self.limit.memory_bytes)

    def footer_bounds(self, side: Side, number: int) -> FileBounds:
        """Return what the footer of a file says of its rows; good to guess by, not to rely on."""
        url = self.file(side, number).url
        try:
            with self._files.open_beside(url) as source:
                bounds = footer_bounds(source, url, self.limit.memory_bytes)
        except FileMissingError as error:
            raise missing_data_file(url) from error
        return FileBounds(
            columns={
                name: ColumnBounds(lower=lower, upper=upper)
                for name, (lower, upper) in bounds.items()
            }
        )

    def read(
        self, side: Side, number: int, wanted: Rows | None = None, columns: Columns = None
    ) -> Iterator[PositionedRows]:
        """Yield rows of a file with their positions in it, in order.

        Args:
            wanted: Positions of the rows, ascending; None for all that its vectors let through.
        """
        kept = self._kept.get((side, number))
        if kept is not None:
            names = None if columns is None else self.schema(columns).names
            yield from _taken(kept, wanted, names)
        elif wanted is None and columns is None:
            yield from self._read_first(side, number)
        else:
            yield from self._read_file(side, number, wanted, columns)

    def _read_first(self, side: Side, number: int) -> Iterator[PositionedRows]:
        """Yield all rows of a file, and keep them if they fit."""
        kept: list[PositionedRows] | None = []
        taken = 0
        for part in self._read_file(side, number, None, None):
            if kept is not None:
                taken += part[1].get_total_buffer_size()
                kept.append(part)
                if taken > self._free_bytes:
                    kept = None
            yield part
        if kept is not None:
            self._kept[side, number] = kept
            self._free_bytes -= taken

    def _read_file(
        self, side: Side, number: int, wanted: Rows | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        scan = scan_of(
            self.file(side, number),
            columns,
            self._files.open_beside,
            version=self._version,
            is_removed=side is Side.REMOVED,
        )
        if wanted is not None:
            # They are among those that its vectors let through.
            scan = replace(scan, select_rows=partial(_selection, wanted))
        for part in read_positioned(scan, self.limit, self._open):
            if self.limit.is_abandoned():
                raise _AbandonedError
            yield part

    def _open(self, url: str) -> BinaryIO:
        try:
            if url in self._opened:
                return self._files.open_beside(url)
            self._opened.add(url)
            return self._files.open(url)
        except FileMissingError as error:
            raise missing_data_file(url) from error


def _selection(wanted: Rows, num_rows: int, memory_bytes: int) -> RowSelection:
    return RowSelection.of(wanted)


def _taken(
    kept: Iterable[PositionedRows], wanted: Rows | None, names: list[str] | None
) -> Iterator[PositionedRows]:
    """Yield some of the rows that were kept."""
    for positions, batch in kept:
        rows = batch if names is None else _selected(batch, names)
        if wanted is None:
            yield positions, rows
            continue
        if isinstance(positions, int):
            here = _between(wanted, positions, positions + batch.num_rows - 1)
            places = here - positions
        else:
            here = _between(wanted, positions[0], positions[-1])
            places = np.searchsorted(positions, here)
        if len(here):
            yield here, _rows_at(rows, places)


def _between(ascending: Rows, first: int, last: int) -> Rows:
    start, end = np.searchsorted(ascending, first), np.searchsorted(ascending, last, "right")
    return ascending[start:end]


def _selected(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    return rows_of_columns(
        [batch.column(name) for name in names],
        pa.schema([batch.schema.field(name) for name in names]),
        batch.num_rows,
    )


def _rows_at(rows: pa.RecordBatch, places: Rows) -> pa.RecordBatch:
    if not rows.num_columns:
        return rows_of_columns([], rows.schema, len(places))
    return rows.take(pa.array(places))
