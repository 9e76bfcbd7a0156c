"""Reads the rows of one fragment with pylance, with their offsets in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import join_columns
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import (
    FileMissingError,
    FilesCollectedError,
    MissingDataFileError,
    StorageError,
    TailerdError,
    UnreadableDataFileError,
)
from tailerd.formats.lance.library import OpenTables
from tailerd.formats.lance.payload import FragmentRows, decode_offsets
from tailerd.formats.lance.protocol.columns import ROW_ID, ColumnSource
from tailerd.formats.plain_schema import decode_schema, file_column, select_columns
from tailerd.reading.conform import conform
from tailerd.reading.file_scan import FieldScan
from tailerd.remedies import RESET_PIPELINE
from tailerd.rows.hash_kernels import Rows
from tailerd.storage.stores import Stores

_ADDRESS = "_rowaddr"
_OFFSET_MASK = (1 << 32) - 1
_PICKED_AT_ONCE = 4096
_DENSE = 4
"""If more than one in so many rows is wanted, reading all is faster than picking them."""
_READ_AHEAD = 2
_MIN_ROWS = 16
_BLOB_ROWS = 64
_PACKED = 3
"""Estimated ratio of the size of rows in memory to their size in a file."""
_BUFFER_BYTES = 32 * 1024 * 1024

_TABLES = OpenTables()

OffsetRows = tuple[Rows, pa.RecordBatch]
"""Offsets of rows in their fragment, ascending, and the rows."""


@dataclass(frozen=True, slots=True)
class RowReading:
    """How rows are read.

    Attributes:
        stores: How files are accessed.
        limit: Of a batch.
    """

    stores: Stores
    limit: BatchLimit


def read_rows(
    requested: FragmentRows,
    reading: RowReading,
    columns: Sequence[str] | None = None,
    offsets: Rows | None = None,
) -> Iterator[OffsetRows]:
    """Yield rows of a fragment in order; blocking.

    Args:
        columns: Names to return, as far as the schema has them, and `ROW_ID`; None for all columns.
        offsets: Of the rows, ascending, a subset of the wanted ones; None for all wanted rows.

    Raises:
        MissingExtraError: pylance is not installed.
        FilesCollectedError: The version was cleaned up.
        MissingDataFileError, UnreadableDataFileError: A file is missing, or damaged.
    """
    if offsets is None and requested.offsets is not None:
        offsets = decode_offsets(requested.offsets)
    try:
        yield from _read(requested, reading, columns, offsets)
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise _mapped_error(requested, reading.stores, error) from error


def _read(
    requested: FragmentRows,
    reading: RowReading,
    columns: Sequence[str] | None,
    offsets: Rows | None,
) -> Iterator[OffsetRows]:
    table = requested.table
    opened = _TABLES.get(table.url, table.version, table.identity, reading.stores)
    fragment = opened.get_fragment(requested.fragment)
    if fragment is None:
        raise OSError(f"Version {table.version} has no fragment {requested.fragment}.")
    if {file.path for file in fragment.data_files()} - {_name(url) for url in requested.files}:
        raise FilesCollectedError(
            f"The fragment {requested.fragment} of version {table.version} of {table.url} is not"
            " the one that was planned: the table was dropped and created again.",
            remedy=RESET_PIPELINE,
            version=table.version,
        )
    target = select_columns(decode_schema(requested.schema), columns)
    has_ids = columns is not None and ROW_ID in columns
    scan = _Scan(fragment, requested, target, reading.limit, has_ids=has_ids)
    if offsets is None:
        yield from scan.all_rows(requested.share)
    elif requested.is_legacy or len(offsets) * _DENSE >= (requested.live_rows or 0):
        yield from _only(scan.all_rows(None), offsets)
    else:
        for first in range(0, len(offsets), _PICKED_AT_ONCE):
            yield from scan.pick_rows(offsets[first : first + _PICKED_AT_ONCE])


def _only(rows: Iterator[OffsetRows], offsets: Rows) -> Iterator[OffsetRows]:
    """Yield the rows with the given offsets; rows are ascending."""
    for at, batch in rows:
        found, positions, _ = np.intersect1d(at, offsets, assume_unique=True, return_indices=True)
        if len(found):
            yield found, take_rows(batch, positions)


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def take_rows(batch: pa.RecordBatch, positions: Rows) -> pa.RecordBatch:
    """Return the rows of a batch at the given positions; the batch may have no columns."""
    if not batch.num_columns:
        return join_columns([], batch.schema, len(positions))
    return batch.take(pa.array(positions))


class _Scan:
    """Scans of one fragment."""

    def __init__(
        self,
        fragment: Any,
        requested: FragmentRows,
        target: pa.Schema,
        limit: BatchLimit,
        *,
        has_ids: bool,
    ) -> None:
        self._fragment = fragment
        self._requested = requested
        self._target = target
        self._has_ids = has_ids
        self._limit = limit
        schema = decode_schema(requested.schema)
        by_name = dict(zip(schema.names, requested.sources, strict=True))
        sources = [by_name[field.name] for field in target]
        self._sources = [None if each is None else each.name for each in sources]
        self._scans = [_plan_scan(*pair) for pair in zip(target, sources, strict=True)]

    def all_rows(self, share: tuple[int, int] | None) -> Iterator[OffsetRows]:
        """Yield all live rows, or a share of them."""
        if share is None:
            yield from self._batches()
        else:
            yield from self._batches(offset=share[0], limit=share[1] - share[0])

    def pick_rows(self, offsets: Rows) -> Iterator[OffsetRows]:
        """Yield the rows at the given offsets."""
        addresses = offsets | (self._requested.fragment << 32)
        listed = ",".join(map(str, addresses.tolist()))
        yield from self._batches(filter=f"{_ADDRESS} IN ({listed})")

    def _batches(self, **which: Any) -> Iterator[OffsetRows]:
        scanner = self._fragment.scanner(
            columns=self._columns(),
            batch_size=self._batch_rows(),
            with_row_address=True,
            with_row_id=self._has_ids,
            batch_readahead=_READ_AHEAD,
            io_buffer_size=_BUFFER_BYTES,
            blob_handling="all_binary",
            **which,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield self._conform_batch(batch)

    def _columns(self) -> list[str] | None:
        """Return the names to pass to pylance; None for all, if a name has special characters."""
        names = [name for name in self._sources if name is not None]
        if all(name.isascii() and name.isidentifier() for name in names):
            return names
        return None

    def _batch_rows(self) -> int:
        most = self._limit.max_rows
        if self._requested.has_blobs:
            return min(most, _BLOB_ROWS)
        rows, size = self._requested.live_rows, self._requested.size_bytes
        if rows and size:
            row_bytes = max(1, _PACKED * size // rows)
            most = min(most, max(_MIN_ROWS, self._limit.max_bytes // row_bytes))
        return most

    def _conform_batch(self, batch: pa.RecordBatch) -> OffsetRows:
        """Return a batch with the requested columns, in the types of the result."""
        count = batch.num_rows
        arrays = [
            pa.nulls(count, scan.target.type)
            if source is None
            else conform(batch.column(source), scan)
            for source, scan in zip(self._sources, self._scans, strict=True)
        ]
        schema = self._target
        if self._has_ids:
            arrays.append(batch.column(ROW_ID).cast(pa.uint64()))
            schema = schema.append(pa.field(ROW_ID, pa.uint64()))
        at = batch.column(_ADDRESS).to_numpy().astype(np.int64) & _OFFSET_MASK
        return at, join_columns(arrays, schema, count)


def _plan_scan(field: pa.Field, source: ColumnSource | None) -> FieldScan:
    """Return how to read a column whose nested fields may have other names in this version."""
    scan = file_column(field)
    if source is None:
        # No field has this id.
        return replace(scan, field_id=-1)
    inner = zip(scan.children, source.parts, strict=False)
    children = tuple(_plan_scan(child.target, part) for child, part in inner)
    return replace(scan, name=source.name, children=children or scan.children)


def _mapped_error(requested: FragmentRows, stores: Stores, error: Exception) -> TailerdError:
    """Map an error of pylance to its cause, by checking which files exist."""
    if isinstance(error, TailerdError):
        return error
    table = requested.table
    if not _is_there(table.manifest, stores):
        return FilesCollectedError(
            f"Version {table.version} of {table.url} was cleaned up before its rows were read.",
            remedy=f"{RESET_PIPELINE} Clean up later than the slowest pipeline delivers.",
            version=table.version,
        )
    for url in requested.files:
        if not _is_there(url, stores):
            return MissingDataFileError(
                f"The data file {url} does not exist, although version {table.version} of the"
                " table names it.",
                remedy="Restore it from a backup.",
                version=table.version,
            )
    return UnreadableDataFileError(
        f"Rows of version {table.version} of {table.url} cannot be read: {_first_line(error)}",
        remedy="Read the table with pylance to see whether the files are damaged, or of a later"
        " version than the installed one knows.",
        version=table.version,
    )


def _is_there(url: str, stores: Stores) -> bool:
    try:
        stores.open_data_file(url).close()
    except FileMissingError:
        return False
    except StorageError:
        # Not known; report the original error, not a missing file.
        return True
    return True


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else repr(error))[:300]
