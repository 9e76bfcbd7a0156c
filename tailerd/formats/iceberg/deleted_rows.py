"""Selects rows of a data file by the delete files that apply to it.

Specification: "Delete Formats", Puffin specification: "deletion-vector-v1 blob type"
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailerd.changefeed.column_filter import ColumnFilter, Comparison
from tailerd.changefeed.limits import BatchLimit, largest_piece_bytes
from tailerd.errors import (
    FileMissingError,
    InvalidDeletionVectorError,
    MissingDataFileError,
    TooLargeError,
)
from tailerd.formats.iceberg.columns import file_scans, rows_schema
from tailerd.formats.iceberg.manifests import POSITION, POSITION_PATH
from tailerd.formats.iceberg.payload import DataRows, Deletes, KeyDeletes, StoredFile, Vector
from tailerd.reading.file_scan import FieldScan, FileScan
from tailerd.reading.parquet import read_positioned
from tailerd.reading.row_selection import RowSelection
from tailerd.remedies import RESTART
from tailerd.rows.hashing import RowHasher, RowHashes

OpenFile = Callable[[str], BinaryIO]
"""Opens a file by its URL."""

_MAGIC = bytes.fromhex("d1d33964")
_FRAME_BYTES = 8
"""Length before a vector's magic number, and checksum after it."""
_SEED_BITS = 128
_KEY_BYTES = 16
_TABLE_NAMES: frozenset[str] = frozenset()
_PATH_COLUMN = FieldScan(
    target=pa.field("file_path", pa.string()), name="file_path", field_id=POSITION_PATH
)
_POSITION_COLUMN = FieldScan(target=pa.field("pos", pa.int64()), name="pos", field_id=POSITION)


def missing_file(url: str) -> MissingDataFileError:
    """Return the error for a file that the metadata names and that does not exist."""
    return MissingDataFileError(
        f"The file {url} is named by the table's metadata and does not exist: its snapshot expired"
        " meanwhile, or orphan files were removed too early.",
        remedy=f"{RESTART}, and expire snapshots later than the slowest pipeline delivers.",
        path=url,
    )


@dataclass(frozen=True)
class DeletedRows:
    """Finds the deleted rows of one data file; blocking.

    Attributes:
        rows: The data file.
        open_file: Opens delete files and, for equality deletes, the data file.
    """

    rows: DataRows
    limit: BatchLimit
    open_file: OpenFile

    @cached_property
    def selection(self) -> RowSelection | None:
        """The selected rows; None if all are.

        Raises:
            TableError: A delete file is missing, damaged or too large.
        """
        if self.rows.only is None:
            if not self.rows.without:
                return None
            return RowSelection(self._load(self.rows.without), is_included=False)
        return RowSelection(self._included, is_included=True)

    @cached_property
    def _included(self) -> BitMap64:
        found = self._load(self.rows.only or Deletes())
        return found - self._load(self.rows.without) if found else found

    @property
    def selects_nothing(self) -> bool:
        """Whether only rows of some delete files are selected, and none is left of them."""
        return self.rows.only is not None and not self._included

    def select_rows(self, num_rows: int, memory_bytes: int) -> RowSelection | None:
        """Return the selected rows; arguments as for `SelectRows`.

        Raises:
            TableError: As `selection`, or a delete file has rows beyond the end of the file.
        """
        return self.selection

    def _load(self, deletes: Deletes) -> BitMap64:
        found = BitMap64()
        for vector in deletes.vectors:
            found |= self._read_vector(vector)
        for file in deletes.positions:
            found |= self._read_positions(file)
        for keys in deletes.keys:
            found |= self._find_keys(keys)
        if found and found.max() >= self.rows.num_rows:
            raise InvalidDeletionVectorError(
                f"Delete files of {self.rows.file.url} delete row {found.max()}, and it has"
                f" {self.rows.num_rows} rows.",
                remedy="They belong to another file, or are damaged: roll the table back to a"
                " snapshot without them.",
            )
        return found

    def _open(self, url: str) -> BinaryIO:
        try:
            return self.open_file(url)
        except FileMissingError as error:
            raise missing_file(url) from error

    def _read_vector(self, vector: Vector) -> BitMap64:
        if vector.length > largest_piece_bytes(self.limit.memory_bytes):
            size = f"The deletion vector {vector.url} has {vector.length >> 20} MiB"
            raise TooLargeError.within(self.limit.memory_bytes, size)
        with self._open(vector.url) as source:
            source.seek(vector.offset)
            return decode_vector(source.read(vector.length), vector)

    def _read_positions(self, file: StoredFile) -> BitMap64:
        """Return the positions in a position delete file that are of this data file."""
        of_file = ColumnFilter(
            column="file_path", comparison=Comparison.EQUAL, values=(self.rows.path,)
        )
        scan = FileScan(
            url=file.url,
            file_format=file.file_format,
            fields=(_PATH_COLUMN, _POSITION_COLUMN),
            filters=(of_file,),
        )
        found = BitMap64()
        for _, batch in read_positioned(scan, self.limit, self._open):
            is_ours = pc.equal(batch.column(0), self.rows.path)
            positions = batch.column(1).filter(is_ours)
            found |= BitMap64(positions.to_numpy(False).astype(np.uint64))
        return found

    def _find_keys(self, keys: KeyDeletes) -> BitMap64:
        """Return the positions of rows whose key is among equality deletes; null equals null."""
        schema = rows_schema(keys.schema)
        hasher, bounds = RowHasher(schema, secrets.randbits(_SEED_BITS)), _KeyBounds(schema)
        hashes: list[RowHashes] = []
        for file in keys.files:
            for _, batch in self._read_keys(keys, file, self._open):
                hashes.append(hasher.hash(batch))
                bounds.add(batch)
        deleted = _join(hashes)
        if len(deleted) * _KEY_BYTES > self.limit.memory_bytes // 4:
            raise TooLargeError.within(
                self.limit.memory_bytes,
                f"{len(deleted)} keys of equality deletes apply to {self.rows.file.url}",
            )
        found = BitMap64()
        filters = bounds.filters()
        for at, batch in self._read_keys(keys, self.rows.file, self._open, filters):
            hits = np.flatnonzero(_are_among(hasher.hash(batch), deleted))
            found |= BitMap64((hits + at if isinstance(at, int) else at[hits]).astype(np.uint64))
        return found

    def _read_keys(
        self,
        keys: KeyDeletes,
        file: StoredFile,
        open_file: OpenFile,
        filters: tuple[ColumnFilter, ...] = (),
    ) -> Iterator[tuple[int | np.ndarray[tuple[int], np.dtype[np.int64]], pa.RecordBatch]]:
        identities = self.rows.identities if file is self.rows.file else keys.identities
        scan = FileScan(
            url=file.url,
            file_format=file.file_format,
            fields=file_scans(keys.schema, None, identities),
            table_names=_TABLE_NAMES,
            filters=filters,
        )
        return read_positioned(scan, self.limit, open_file)


class _KeyBounds:
    """The least and greatest deleted key by column, by which row groups are skipped."""

    def __init__(self, schema: pa.Schema) -> None:
        self._bounds: dict[str, tuple[Any, Any]] = {}
        # Others have no bounds in a footer that are certain.
        self._names = {each.name for each in schema if _has_order(each.type)}

    def add(self, keys: pa.RecordBatch) -> None:
        """Add some deleted keys."""
        for name in list(self._names):
            column = keys.column(name)
            if column.null_count:
                self._names.discard(name)
                continue
            found = pc.min_max(column).as_py()
            lower, upper = self._bounds.get(name, (found["min"], found["max"]))
            self._bounds[name] = min(lower, found["min"]), max(upper, found["max"])

    def filters(self) -> tuple[ColumnFilter, ...]:
        """Return conditions that every deleted key meets."""
        return tuple(
            ColumnFilter(column=name, comparison=comparison, values=(value,))
            for name in sorted(self._names & self._bounds.keys())
            for comparison, value in zip(
                (Comparison.AT_LEAST, Comparison.AT_MOST), self._bounds[name], strict=True
            )
        )


def _has_order(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_date(kind))


def _join(hashes: list[RowHashes]) -> RowHashes:
    """Return hashes, each once, sorted by their first half."""
    first, second = (
        np.concatenate([np.empty(0, np.uint64), *(getattr(each, half) for each in hashes)])
        for half in ("first", "second")
    )
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    is_new = np.ones(len(first), np.bool_)
    is_new[1:] = (np.diff(first) != 0) | (np.diff(second) != 0)
    return RowHashes(first[is_new], second[is_new])


def _are_among(hashes: RowHashes, those: RowHashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which hashes are among others, which are sorted by their first half."""
    found = np.zeros(len(hashes), np.bool_)
    if not len(those):
        return found
    at = np.searchsorted(those.first, hashes.first)
    while True:
        # Different keys hardly ever have the same first half.
        is_left = (at < len(those)) & ~found
        here = np.minimum(at, len(those) - 1)
        is_left &= those.first[here] == hashes.first
        if not is_left.any():
            return found
        found |= is_left & (those.second[here] == hashes.second)
        at = at + 1


def decode_vector(blob: bytes, vector: Vector) -> BitMap64:
    """Return the rows of a deletion vector.

    Raises:
        InvalidDeletionVectorError: Length, checksum, magic number or number of rows are wrong.
    """
    size = int.from_bytes(blob[:4], "big")
    if len(blob) < vector.length or size != vector.length - _FRAME_BYTES:
        raise _invalid(vector, f"it has {len(blob)} bytes and says {size}")
    data = blob[4 : 4 + size]
    if data[:4] != _MAGIC:
        raise _invalid(vector, "it does not start with the magic number of the format")
    if zlib.crc32(data) != int.from_bytes(blob[4 + size : _FRAME_BYTES + size], "big"):
        raise _invalid(vector, "its checksum is wrong")
    try:
        found = BitMap64.deserialize(data[4:])
    except (ValueError, MemoryError, RuntimeError, IndexError) as error:
        raise _invalid(vector, f"its bitmap is damaged ({error})") from error
    if len(found) != vector.rows:
        raise _invalid(vector, f"it holds {len(found)} rows and the manifest says {vector.rows}")
    return found


def _invalid(vector: Vector, why: str) -> InvalidDeletionVectorError:
    return InvalidDeletionVectorError(
        f"The deletion vector in {vector.url} at byte {vector.offset} cannot be read: {why}.",
        remedy="It is damaged: restore the file from a backup, or roll the table back to a"
        " snapshot without it.",
    )


def with_selection(scan: FileScan, deleted: DeletedRows) -> FileScan:
    """Return a scan of the selected rows of its data file."""
    if deleted.rows.only is None and not deleted.rows.without:
        return scan
    return replace(scan, select_rows=deleted.select_rows)
