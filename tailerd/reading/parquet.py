"""Reads a file scan as Arrow batches of bounded size, however large the file."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import join_columns
from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import TailerdError, UnreadableDataFileError
from tailerd.reading.column_ranges import ranges_ahead
from tailerd.reading.conform import FileFields, conform, missing_values
from tailerd.reading.file_scan import PARQUET, FieldScan, FileScan, FileShare
from tailerd.reading.group_bounds import may_have_match
from tailerd.reading.legacy_calendar import LegacyCalendar
from tailerd.reading.other_files import read_rows
from tailerd.reading.parquet_batches import BoundedBatches
from tailerd.reading.parquet_chunks import FileFooter, RowGroup
from tailerd.reading.parquet_open import OpenedParquet, open_parquet, to_arrow
from tailerd.reading.parquet_pieces import SPARSE, RowPieces
from tailerd.reading.row_selection import RowSelection
from tailerd.storage.base import RemoteFile
from tailerd.storage.stores import Stores

TYPE_OPTIONS: Mapping[str, Any] = {"coerce_int96_timestamp_unit": "us"}
PAGE_OPTIONS: Mapping[str, Any] = {
    "arrow_extensions_enabled": False,
    # Pages without a checksum cost nothing; others 5% (zstd) to 50% (uncompressed) more time to
    # decode.
    "page_checksum_verification": True,
}
"""Options of every reader of data files."""

OpenFile = Callable[[str], BinaryIO]
"""Opens a data file by its URL, such as `Stores.open_data_file`."""

_Part = tuple[pa.RecordBatch, pa.Array | None]
_Positions = npt.NDArray[np.int64] | int
"""Of each row in its file, or that of the first if they are consecutive."""


class FileRows(NamedTuple):
    """Rows of a file, their change types if the file has them, and their positions."""

    rows: pa.RecordBatch
    changes: pa.Array | None
    positions: _Positions

    def slice(self, start: int, count: int) -> FileRows:
        """Return `count` rows from `start` on, without copying."""
        at = self.positions
        return FileRows(
            self.rows.slice(start, count),
            None if self.changes is None else self.changes.slice(start, count),
            at + start if isinstance(at, int) else at[start : start + count],
        )


def read_file(
    scan: FileScan, limit: BatchLimit, open_file: OpenFile | None = None
) -> Iterator[FileRows]:
    """Read the rows of a scan, in file order.

    Args:
        open_file: Opens a file by its URL; by default with stores configured by the environment.

    Yields:
        Rows with `scan.schema`, never empty, their change types if the scan names a column of
        them, and their positions in the file.

    Raises:
        UnreadableDataFileError: The file is not Parquet, or its columns do not fit.
        UnsupportedFeatureError: It is encrypted.
        TailerdError: Raised by `open_file` or the scan's `select_rows`.
    """
    parts = _parts(scan, limit, open_file or Stores().open_data_file)
    yield from with_whole_pairs(
        part
        for rows, changes, stretch in parts
        if rows.num_rows
        for part in split_part(FileRows(rows, changes, stretch.positions()), limit)
    )


def read_positioned(
    scan: FileScan, limit: BatchLimit, open_file: OpenFile
) -> Generator[tuple[_Positions, pa.RecordBatch], None, None]:
    """Read the rows of a scan with their positions in the file, in file order.

    Yields:
        Positions of the rows, or that of the first if they are consecutive, and the rows; a batch
        may exceed the limit if the file understates its size.

    Raises:
        TailerdError: As `read_file`.
    """
    for rows, _, stretch in _parts(scan, limit, open_file):
        if rows.num_rows:
            yield stretch.positions(), rows


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The rows of the file in a batch: the selected ones of [start, start + count)."""

    start: int
    count: int
    selection: RowSelection | None

    def positions(self) -> _Positions:
        """Return the positions; only the first if all rows are selected."""
        positions = (
            None if self.selection is None else self.selection.positions(self.start, self.count)
        )
        return self.start if positions is None else positions


def _parts(
    scan: FileScan, limit: BatchLimit, open_file: OpenFile
) -> Iterator[tuple[pa.RecordBatch, pa.Array | None, _Stretch]]:
    """Yield selected rows, their change types, and their stretch of the file."""
    with open_file(scan.url) as source, name_file(scan.url):
        if scan.file_format != PARQUET:
            for batch, at in read_rows(scan, limit, source):
                yield batch, None, _Stretch(at, batch.num_rows, None)
            return
        opened = open_scanned(source, scan, limit)
        selection = None
        if scan.select_rows is not None:
            selection = scan.select_rows(opened.file.metadata.num_rows, limit.memory_bytes)
        shape = Shape(scan, opened)
        for batch, at in _RowGroups(scan, opened, source, shape, limit).read(selection):
            rows, changes = _select_part(shape.make_part(batch, at), selection, at)
            yield rows, changes, _Stretch(at, batch.num_rows, selection)


def open_scanned(source: BinaryIO, scan: FileScan, limit: BatchLimit) -> OpenedParquet:
    """Open a data file for a scan.

    Raises:
        TailerdError, pyarrow.ArrowException, OSError: As `open_parquet`, or it has no change types.
    """
    options = _options(source, scan.change_column)
    try:
        return open_parquet(source, limit.memory_bytes, f"the data file {scan.url}", **options)
    except KeyError as error:
        raise UnreadableDataFileError(
            f"it is a change file and has no column {scan.change_column}"
        ) from error


def _reopen(source: BinaryIO, change_column: str, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(to_arrow(source), **_options(source, change_column) | options)


def _options(source: BinaryIO, change_column: str) -> dict[str, Any]:
    return {
        # If reads are requests, all columns of a row group are read with as few as possible.
        "pre_buffer": isinstance(source, RemoteFile),
        "read_dictionary": coded_columns(change_column),
        **TYPE_OPTIONS,
        **PAGE_OPTIONS,
    }


def coded_columns(change_column: str) -> list[str] | None:
    """Return the columns that are read as dictionaries.

    A few repeated values: only their codes need to be decoded and counted.
    """
    return [change_column] if change_column else None


@contextmanager
def name_file(url: str) -> Iterator[None]:
    """Add the file's name to errors."""
    try:
        yield
    except UnreadableDataFileError as error:
        raise UnreadableDataFileError(
            f"The data file {url} does not fit the table: {error.message}.",
            remedy="The writer is broken, or the file was replaced: restore it from a backup.",
        ) from error
    except TailerdError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnreadableDataFileError(
            f"The data file {url} cannot be read: {error}.",
            remedy="It is incomplete or not a Parquet file: restore it from a backup.",
        ) from error


class Shape:
    """Maps batches of the file to batches of the scan; created once per file.

    Attributes:
        columns: The file's leaf columns to read, ascending, grouped by column of a batch.
        leaves: The same, flat.
        names: Names of the columns of a batch.
        has_clear_names: Whether these name the columns, and no others of the file.
        coded: The leaf column of change types, which is read as a dictionary; empty without one.
    """

    def __init__(self, scan: FileScan, opened: OpenedParquet) -> None:
        file_schema = opened.file.schema_arrow
        self._scan = scan
        self._schema = scan.schema
        fields = FileFields(file_schema, scan.table_names)
        _require_ids(scan, fields)
        positions = [None if f.constant is not None else fields.find(f) for f in scan.fields]
        change = _change_index(scan, fields)
        requested = {position for position in (*positions, change) if position is not None}
        if not requested and file_schema.names:
            # At least one column must be read to count the rows.
            requested = {_smallest(file_schema)}
        at = {position: number for number, position in enumerate(sorted(requested))}
        self._at = [None if position is None else at[position] for position in positions]
        self._change_at = None if change is None else at[change]
        names = file_schema.names
        self.names = [names[position] for position in sorted(requested)]
        self.has_clear_names = bool(self.names) and len({*names}) == len(names)
        self.columns = _list_leaves(file_schema, requested)
        self.leaves = [leaf for column in self.columns for leaf in column]
        self.coded = () if self._change_at is None else self.columns[self._change_at]
        self._calendar: LegacyCalendar | None = None
        if opened.footer.notes:
            self._calendar = LegacyCalendar.from_notes(opened.footer.notes)
        self._types = [] if self._calendar is None else opened.physical_types(self.leaves)
        self._stored = file_schema
        self._positions = dict(zip(scan.schema.names, positions, strict=True))
        constants = [field.constant for field in scan.fields if field.constant is not None]
        # Other types have a fixed size, and dates beyond Python's cannot be converted.
        self.constant_bytes = sum(
            len(constant.as_py() or b"")
            for constant in constants
            if isinstance(constant, pa.StringScalar | pa.BinaryScalar)
        ) + sum(map(_padded_bytes, scan.fields))

    def may_match(self, footer: FileFooter, group: int) -> bool:
        """Return whether a row of a row group can meet the conditions of the scan."""
        return all(self._may_meet(footer, group, each) for each in self._scan.filters)

    def _may_meet(self, footer: FileFooter, group: int, by: ColumnFilter) -> bool:
        position = self._positions.get(by.column)
        if position is None or self._calendar is not None:
            return True
        field = self._scan.fields[self._schema.get_field_index(by.column)]
        stored = self._stored.field(position)
        [*leaves] = _list_leaves(self._stored, {position})[0]
        is_changed = field.pad_to is not None or field.default is not None or field.is_uuid
        if len(leaves) != 1 or pa.types.is_nested(stored.type) or is_changed:
            return True
        chunk = footer.groups[group].chunks[leaves[0]]
        return may_have_match(footer, chunk, stored.type, field.target.type, by)

    def make_part(self, batch: pa.RecordBatch, start: int) -> _Part:
        """Return rows and change types of a batch of the file, whose first row is at `start`."""
        count = batch.num_rows
        if self._calendar is not None:
            batch = self._calendar.rebase(batch, self._types)
        arrays = []
        for field, at in zip(self._scan.fields, self._at, strict=True):
            if field.constant is not None:
                arrays.append(pa.repeat(field.constant, count))
            elif at is None:
                arrays.append(_fill_nulls(missing_values(field, count), field, start))
            else:
                arrays.append(_fill_nulls(conform(batch.column(at), field), field, start))
        return join_columns(arrays, self._schema, count), self._change_types(batch)

    def _change_types(self, batch: pa.RecordBatch) -> pa.Array | None:
        if self._change_at is None:
            return None
        changes = batch.column(self._change_at)
        if not pa.types.is_dictionary(changes.type):
            changes = changes.cast(pa.string())
        # The protocol defines four values; other values exist and are passed through. A null is an
        # error.
        if changes.null_count:
            raise UnreadableDataFileError(
                f"its column {self._scan.change_column} is null in {changes.null_count} rows, so"
                " their change is unknown"
            )
        return changes


def _padded_bytes(field: FieldScan) -> int:
    """Return how many bytes padding may add to a row, at least."""
    return (field.pad_to or 0) + sum(map(_padded_bytes, field.children))


def _fill_nulls(values: pa.Array, field: FieldScan, start: int) -> pa.Array:
    """Return values with the field's default for nulls; `start` is the first row's position."""
    if field.first_default is not None:
        first = field.first_default + start
        return pc.coalesce(values, pa.array(np.arange(first, first + len(values))))
    return values if field.default is None else pc.fill_null(values, field.default)


def _require_ids(scan: FileScan, fields: FileFields) -> None:
    """Reject a file without field ids if columns are found by id: all values would be null."""
    is_by_id = any(field.field_id is not None for field in scan.fields)
    is_named = any(field.other_names for field in scan.fields)
    if is_by_id and not is_named and not fields.have_ids:
        raise UnreadableDataFileError(
            "its columns carry no field ids, and the table finds columns by id"
        )


def _change_index(scan: FileScan, fields: FileFields) -> int | None:
    if not scan.change_column:
        return None
    return fields.find(FieldScan(target=pa.field("", pa.string()), name=scan.change_column))


def _smallest(schema: pa.Schema) -> int:
    flat = (position for position, field in enumerate(schema) if not pa.types.is_nested(field.type))
    return next(flat, 0)


def _list_leaves(schema: pa.Schema, positions: Collection[int]) -> list[range]:
    """Return the leaf columns of each given top-level column, in the order of the file.

    Counted, not looked up by path: names may repeat, and contain dots.
    """
    leaves: list[range] = []
    first = 0
    for position, field in enumerate(schema):
        until = first + num_leaves(field.type)
        if position in positions:
            leaves.append(range(first, until))
        first = until
    return leaves


def num_leaves(kind: pa.DataType) -> int:
    """Return the number of leaf columns of a column of this type."""
    if pa.types.is_nested(kind):
        return sum(num_leaves(kind.field(position).type) for position in range(kind.num_fields))
    return 1


class _RowGroups:
    """Reads the row groups of an open file that a scan selects."""

    def __init__(
        self,
        scan: FileScan,
        opened: OpenedParquet,
        source: BinaryIO,
        shape: Shape,
        limit: BatchLimit,
    ) -> None:
        self._scan = scan
        self._groups = opened.footer.groups
        self._footer, self._shape = opened.footer, shape
        self._source = source
        self._leaves = shape.leaves
        self._columns = shape.columns
        self._limit = limit

        def read_batches(opened: OpenedParquet, source: BinaryIO) -> BoundedBatches:
            name, size = f"the data file {scan.url}", shape.constant_bytes
            reopen = partial(_reopen, change_column=scan.change_column)
            return BoundedBatches(opened, reopen, source, name, limit, size)

        self._batches = read_batches(opened, source)

        self._open_pieces: Callable[[], RowPieces] = lambda: RowPieces(
            opened,
            source,
            shape.columns,
            lambda piece: read_batches(open_scanned(piece, scan, limit), piece),
        )

    @cached_property
    def _pieces(self) -> RowPieces:
        return self._open_pieces()

    def read(self, selection: RowSelection | None) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield batches with all selected rows, each with the position of its first row."""
        requested = _select_groups(self._groups, self._scan.share, selection)
        if self._scan.filters:
            matching = [each for each in requested if self._shape.may_match(self._footer, each[0])]
            # The images of an update may be in two row groups.
            if not self._scan.change_column or not matching:
                requested = matching
        for position, (group, first_row) in enumerate(requested):
            size = _batch_rows(self._groups[group], self._limit)
            pieces = None if selection is None else self._few(group, first_row, size, selection)
            if pieces is not None:
                yield from ((batch, first_row + at) for batch, at in pieces)
                continue
            if isinstance(self._source, RemoteFile):
                ahead = [each for each, _ in requested[position + 1 : position + 2]]
                most_bytes = self._limit.max_bytes
                self._source.expect(
                    ranges_ahead(self._groups, self._leaves, group, ahead, most_bytes)
                )
            at = first_row
            for batch in self._batches.rows(group, self._columns, size):
                yield batch, at
                at += batch.num_rows

    def _few(
        self, group: int, first_row: int, most_rows: int, selection: RowSelection
    ) -> Iterator[tuple[pa.RecordBatch, int]] | None:
        """Return batches with the selected rows of a row group, read by pages.

        None if reading all would be cheaper, as in a remote file with a request per page header.
        """
        count = self._groups[group].num_rows
        few = selection.count(first_row, first_row + count) * SPARSE <= count
        if not few or isinstance(self._source, RemoteFile):
            return None
        positions = selection.positions(first_row, count)
        return (
            None
            if positions is None
            else self._pieces.rows(group, positions - first_row, most_rows)
        )


def _select_groups(
    groups: Sequence[RowGroup], share: FileShare, selection: RowSelection | None
) -> list[tuple[int, int]]:
    """Return the row groups of a share with selected rows, each with its first row."""
    found = []
    total_bytes, done_bytes = sum(group.size_bytes for group in groups), 0
    start = 0
    for number, group in enumerate(groups):
        begin_bytes, end = done_bytes, start + group.num_rows
        done_bytes += group.size_bytes
        is_ours = share.has(begin_bytes, done_bytes, total_bytes)
        if is_ours and (selection is None or not selection.is_empty(start, end)):
            found.append((number, start))
        start = end
    return found


def _batch_rows(about: RowGroup, limit: BatchLimit) -> int:
    """Return how many rows of a row group fit a batch, by the sizes in the file's footer."""
    row_bytes = max(1, about.size_bytes // max(1, about.num_rows))
    return max(1, min(limit.max_rows, limit.max_bytes // row_bytes))


def _select_part(part: _Part, selection: RowSelection | None, at: int) -> _Part:
    """Return the selected rows of a part that begins at position `at` of the file.

    Applied after the cast to the table's types: PyArrow 26 can neither filter nor take string
    views.
    """
    if selection is None:
        return part
    rows, changes = part
    return selection.apply(rows, at), None if changes is None else selection.apply(changes, at)


def split_part(part: FileRows, limit: BatchLimit) -> Iterator[FileRows]:
    """Yield rows, split if they are larger than the file stated (as with dictionaries)."""
    count = part.rows.num_rows
    pieces = min(count, -(-part.rows.get_total_buffer_size() // limit.max_bytes))
    if pieces <= 1:
        yield part
        return
    step = -(-count // pieces)
    for start in range(0, count, step):
        yield part.slice(start, min(step, count - start))


def with_whole_pairs(parts: Iterable[FileRows]) -> Iterator[FileRows]:
    """Keep an update's images in one batch; `update_postimage` directly follows `_preimage`."""
    held: FileRows | None = None
    for part in parts:
        if held is not None:
            part, held = _join_rows(held, part), None
        if part.changes is not None and part.changes[-1].as_py() == ChangeType.UPDATE_PREIMAGE:
            last = part.rows.num_rows - 1
            held, part = part.slice(last, 1), part.slice(0, last)
        if part.rows.num_rows:
            yield part
    if held is not None:
        yield held


def _join_rows(first: FileRows, second: FileRows) -> FileRows:
    changes = [
        each.cast(pa.string()) for each in (first.changes, second.changes) if each is not None
    ]
    return FileRows(
        pa.concat_batches([first.rows, second.rows]),
        pa.concat_arrays(changes),
        np.concatenate([_each(first), _each(second)]),
    )


def _each(part: FileRows) -> npt.NDArray[np.int64]:
    at = part.positions
    return np.arange(at, at + part.rows.num_rows) if isinstance(at, int) else at
