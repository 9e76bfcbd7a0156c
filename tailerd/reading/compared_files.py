"""Reads the inputs of a commit whose rows are compared, once for each pass of the comparison."""

from __future__ import annotations

import abc
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tailerd.changefeed.change_batch import join_columns, select_by_name
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import FileMissingError, TableError, TailerdError
from tailerd.reading.equal_chunks import FileDifference, GroupDifference, compare_files
from tailerd.reading.file_scan import FileScan
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.parquet import read_positioned
from tailerd.reading.parquet_chunks import ColumnChunk, FileFooter
from tailerd.reading.parquet_footer import UNREADABLE
from tailerd.reading.parquet_open import open_parquet
from tailerd.reading.read_ahead import read_ahead
from tailerd.reading.row_selection import RowSelection
from tailerd.rows.difference import Side
from tailerd.rows.equality import RowComparer
from tailerd.rows.exact import PositionedRows
from tailerd.rows.groups import ColumnBounds, FileBounds, FilesToCompare
from tailerd.rows.hash_kernels import Rows
from tailerd.rows.hashing import VariantEquality
from tailerd.rows.positions import Positions

MIN_MEMORY_BYTES = 16 * 1024 * 1024
"""With less, files would be read many times."""

MIN_BYTES = 4 * 1024 * 1024
"""For smaller commits decoding files is faster than comparing their bytes."""

Columns = tuple[str, ...] | None
"""Logical names, as far as the version has them; None for all."""


class ComparedRows(Protocol):
    """A commit whose removed and added rows are compared, as described by a format."""

    @property
    def groups(self) -> Sequence[FilesToCompare]:
        """Its files; each is in one group."""
        ...

    @property
    def key(self) -> Sequence[str]:
        """Key columns by which a delete and an insert are paired to an update; empty for none."""
        ...

    @property
    def row_ids(self) -> Sequence[str]:
        """Columns that are equal exactly if a row was carried over; empty: all values decide."""
        ...

    @property
    def prefix(self) -> str:
        """Distinguishes its rows' positions from others of the version, as in `RowPositions`."""
        ...

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the numbers of a side's files, as in `RowPositions`."""
        ...

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides."""
        ...

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Return whether no row of a file counts, so that it need not be read."""
        ...


class ComparedCommit(ComparedRows, Protocol):
    """`ComparedRows` whose rows are in Parquet files."""

    def scan(self, side: Side, number: int, columns: Columns = None) -> FileScan:
        """Return how to read a file.

        Raises:
            TableError: It cannot be read.
        """
        ...

    def missing(self, url: str) -> TableError:
        """Return the error for a missing file."""
        ...


class _AbandonedError(Exception):
    """Raised to stop reading after the consumer abandoned the rows."""


@dataclass(frozen=True, slots=True)
class _RetainedRows:
    """Rows of a file in all columns.

    Attributes:
        requested: Their positions; None: all selected rows.
    """

    requested: Positions | None
    parts: Sequence[PositionedRows]

    def has(self, requested: Positions | None, names: Sequence[str] | None) -> bool:
        """Return whether the kept rows contain these rows and columns."""
        there = self.parts[0][1].schema.names if self.parts else names
        if names is not None and not set(names) <= set(there or ()):
            return False
        if self.requested is None:
            return True
        return requested is not None and len(self.requested.union(requested)) == len(self.requested)


class ComparedInputs(abc.ABC):
    """Reads the rows of one commit; keeps rows of the first read as far as memory allows.

    Args:
        limit: Of a batch. Half of `working_bytes` is for rows that are kept, half for comparing.
    """

    def __init__(self, limit: BatchLimit) -> None:
        self.limit = limit
        self.working_bytes = max(MIN_MEMORY_BYTES, limit.working_bytes // 2)
        self._retained: dict[tuple[Side, int], _RetainedRows] = {}
        self._free_bytes = self.working_bytes

    @property
    @abc.abstractmethod
    def commit(self) -> ComparedRows:
        """The description of the rows."""

    @abc.abstractmethod
    def footer_bounds(self, side: Side, number: int) -> FileBounds:
        """Return bounds of a file's rows without reading them; only for guesses."""

    @abc.abstractmethod
    def read_input(
        self, side: Side, number: int, requested: Positions | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        """Yield rows as `read` does, from the file itself."""

    def unequal(self, removed: int, added: int) -> tuple[Positions, Positions] | None:
        """Return which rows of two aligned files may differ; None: all selected rows.

        The other rows are equal in both, each to one of the other file.
        """
        return None

    def read(
        self,
        side: Side,
        number: int,
        requested: Positions | None = None,
        columns: Columns = None,
        *,
        is_again: bool = False,
    ) -> Iterator[PositionedRows]:
        """Yield rows of a file with their positions in it, in order.

        Args:
            requested: Positions of the rows, ascending; None for all selected rows.
            is_again: Whether some of them will likely be read again, so that keeping them pays off.
        """
        retained = self._retained.get((side, number))
        names = None if columns is None else self.commit.schema(columns).names
        if retained is not None and retained.has(requested, names):
            yield from _select_rows(
                retained.parts, None if requested is None else requested.to_numpy(), names
            )
        elif is_again and columns is None:
            yield from self._read_first(side, number, requested)
        else:
            yield from self._read_on(side, number, requested, columns)

    def _read_first(
        self, side: Side, number: int, requested: Positions | None
    ) -> Iterator[PositionedRows]:
        """Yield rows of a file, and keep them if they fit."""
        retained: list[PositionedRows] = []
        for part in self._read_on(side, number, requested, None):
            if self._free_bytes > 0:
                self._free_bytes -= part[1].get_total_buffer_size()
                retained.append(part)
            else:
                # Keep nothing more: the following files are hardly smaller.
                retained.clear()
            yield part
        if self._free_bytes > 0 and (side, number) not in self._retained:
            self._retained[side, number] = _RetainedRows(requested, retained)

    def _read_on(
        self, side: Side, number: int, requested: Positions | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        for part in self.read_input(side, number, requested, columns):
            if self.limit.is_abandoned():
                raise _AbandonedError
            yield part


class ComparedFiles(ComparedInputs):
    """Reads the Parquet files of one commit.

    Args:
        commit: Describes them.
        limit: As in `ComparedInputs`.
        files: Opens them.
        size_bytes: Total size of all files.
    """

    def __init__(
        self, commit: ComparedCommit, limit: BatchLimit, files: FilesAhead, size_bytes: int
    ) -> None:
        super().__init__(limit)
        self._commit = commit
        self._size_bytes = size_bytes
        self._files = files
        self._opened: set[str] = set()

    @property
    def commit(self) -> ComparedCommit:
        """The description of the files."""
        return self._commit

    def footer_bounds(self, side: Side, number: int) -> FileBounds:
        """Return the bounds in the footer of a file; only for guesses, they may be wrong."""
        url = self.commit.scan(side, number).url
        try:
            with self._files.open_unplanned(url) as source:
                bounds = footer_bounds(source, url, self.limit.memory_bytes)
        except FileMissingError as error:
            raise self.commit.missing(url) from error
        return FileBounds(
            columns={
                name: ColumnBounds(lower=lower, upper=upper)
                for name, (lower, upper) in bounds.items()
            }
        )

    def read_input(
        self, side: Side, number: int, requested: Positions | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        """Yield rows of a file with their positions in it."""
        # The wanted rows are already selected ones.
        selection = None if requested is None else RowSelection.from_set(requested)
        yield from self._read_selected(side, number, selection, columns)

    def unequal(self, removed: int, added: int) -> tuple[Positions, Positions] | None:
        """Return which rows of two aligned files may differ; None: all selected rows.

        If most columns of the files are equal byte for byte, only the others are decoded.
        """
        if self._size_bytes < MIN_BYTES:
            return None
        numbers = {Side.REMOVED: removed, Side.ADDED: added}
        one, other = (self.commit.scan(side, number) for side, number in numbers.items())
        found = compare_files((one, other), self._open, self.limit.memory_bytes)
        if found is None:
            return None
        return unequal_rows(
            found,
            self.commit.schema(),
            lambda side, rows, columns: self._read_selected(side, numbers[side], rows, columns),
        )

    def _read_selected(
        self, side: Side, number: int, selection: RowSelection | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        scan = self.commit.scan(side, number, columns)
        if selection is not None:
            scan = replace(scan, select_rows=lambda num_rows, memory_bytes: selection)
        parts = read_positioned(scan, self.limit, self._open)
        return parts if self._size_bytes < MIN_BYTES else read_ahead(parts, _size)

    def _open(self, url: str) -> BinaryIO:
        try:
            if url in self._opened:
                return self._files.open_unplanned(url)
            self._opened.add(url)
            return self._files.open(url)
        except FileMissingError as error:
            raise self.commit.missing(url) from error


def _select_rows(
    retained: Iterable[PositionedRows], requested: Rows | None, names: list[str] | None
) -> Iterator[PositionedRows]:
    """Yield the wanted rows of those retained."""
    for positions, batch in retained:
        rows = batch if names is None else select_by_name(batch, names)
        if requested is None:
            yield positions, rows
            continue
        if isinstance(positions, int):
            here = _slice_range(requested, positions, positions + batch.num_rows - 1)
            row_positions = here - positions
        else:
            here = _slice_range(requested, positions[0], positions[-1])
            row_positions = np.searchsorted(positions, here)
        if len(here):
            yield here, _rows_at(rows, row_positions)


def _slice_range(ascending: Rows, first: int, last: int) -> Rows:
    start, end = np.searchsorted(ascending, first), np.searchsorted(ascending, last, "right")
    return ascending[start:end]


def _rows_at(rows: pa.RecordBatch, positions: Rows) -> pa.RecordBatch:
    if not rows.num_columns:
        return join_columns([], rows.schema, len(positions))
    return rows.take(pa.array(positions))


def _size(part: PositionedRows) -> int:
    size: int = part[1].get_total_buffer_size()
    return size


MAX_COLUMNS = 8
MAX_ROW_GROUPS = 64
"""Reading a value takes some microseconds, and a few are enough to distinguish files."""

_NUMBERS = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}


def footer_bounds(source: BinaryIO, url: str, memory_bytes: int) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of some leaf columns, by their paths in the file.

    Values other than numbers are bytes, which may be truncated. Empty for a file that cannot be
    read; reading its rows raises the error.

    Args:
        source: The open file.
        url, memory_bytes: As in `reading.parquet.read_file`.
    """
    try:
        opened = open_parquet(source, memory_bytes, url, arrow_extensions_enabled=False)
        footer, schema = opened.footer, opened.file.schema
        if not 0 < len(footer.groups) <= MAX_ROW_GROUPS:
            return {}
        leaves = ([group.chunks[leaf] for group in footer.groups] for leaf in range(len(schema)))
        bounds = ((leaf, _bounds(footer, chunks)) for leaf, chunks in enumerate(leaves))
        known = ((schema.column(leaf).path, found) for leaf, found in bounds if found is not None)
        return dict(islice(known, MAX_COLUMNS))
    except (pa.ArrowException, OSError, TailerdError, struct.error, *UNREADABLE):
        return {}


def _bounds(footer: FileFooter, chunks: Sequence[ColumnChunk]) -> tuple[Any, Any] | None:
    lowers, uppers = [], []
    for chunk in chunks:
        found = footer.statistics(chunk)
        if found.lower is None or found.upper is None:
            return None
        lowers.append(_value(found.lower, chunk))
        uppers.append(_value(found.upper, chunk))
    return min(lowers), max(uppers)


def _value(encoded: bytes, chunk: ColumnChunk) -> Any:
    shape = _NUMBERS.get(chunk.physical_type)
    return encoded if shape is None else struct.unpack(shape, encoded)[0]


MAX_ROWS = 1 << 20
"""If more rows of a file may differ, all are compared. Constant: every run cancels equal rows."""
_SEED_BITS = 128

ReadColumns = Callable[[Side, RowSelection, tuple[str, ...]], Iterable[PositionedRows]]
"""Reads the given columns of the selected rows of a side's file, in order."""


def unequal_rows(
    found: FileDifference, schema: pa.Schema, read: ReadColumns
) -> tuple[Positions, Positions] | None:
    """Return the positions of those rows of each file that may differ; the others are equal.

    Args:
        found: The difference of the files' bytes.
        schema: Of all columns.

    Returns:
        None if they are most of a file's rows, or too many.
    """
    unknown = [np.arange(g.start, g.start + g.count) for g in found.groups if g.columns is None]
    counts = [sum(map(len, unknown)) + rows - found.known_rows for rows in found.rows]
    most = min(MAX_ROWS, min(found.rows) // 2)
    if max(counts) > most:
        return None
    partly = [group for group in found.groups if group.columns is not None]
    for positions in _compare_groups(partly, schema, read) if partly else ():
        unknown.append(positions)
        if sum(map(len, unknown)) > most:
            return None
    common = np.sort(np.concatenate([np.empty(0, np.int64), *unknown]))
    removed, added = (
        Positions.from_ascending(np.concatenate([common, np.arange(found.known_rows, rows)]))
        for rows in found.rows
    )
    return removed, added


def _compare_groups(
    groups: Sequence[GroupDifference], schema: pa.Schema, read: ReadColumns
) -> Iterator[Rows]:
    """Yield the positions of the rows that differ in the columns that may differ."""
    requested = {position for group in groups for position in group.columns or ()}
    names = tuple(name for position, name in enumerate(schema.names) if position in requested)
    # By bytes: rows that differ are compared again later, variants by value.
    comparer = RowComparer(
        pa.schema([schema.field(position) for position in sorted(requested)]),
        secrets.randbits(_SEED_BITS),
        VariantEquality.BY_BYTES,
    )
    rows = BitMap64()
    for group in groups:
        rows.add_range(group.start, group.start + group.count)
    selection = RowSelection(rows, is_included=True)
    for positions, one, other in _in_step(*(read(side, selection, names) for side in Side)):
        row_positions = np.flatnonzero(~comparer.equal(one, other))
        yield row_positions + positions if isinstance(positions, int) else positions[row_positions]


def _in_step(
    one: Iterable[PositionedRows], other: Iterable[PositionedRows]
) -> Iterator[tuple[Rows | int, pa.RecordBatch, pa.RecordBatch]]:
    """Yield rows at the same positions of two files, however each is cut into batches."""
    others = iter(other)
    waiting: pa.RecordBatch | None = None
    for first, batch in one:
        positions, left = first, batch
        while left.num_rows:
            if waiting is None or not waiting.num_rows:
                _, waiting = next(others)
            count = min(left.num_rows, waiting.num_rows)
            yield positions, left.slice(0, count), waiting.slice(0, count)
            left, waiting = left.slice(count), waiting.slice(count)
            positions = positions + count if isinstance(positions, int) else positions[count:]
