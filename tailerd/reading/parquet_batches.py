"""Reads rows of a Parquet file in batches of as many rows as memory allows.

By default a reader decodes a fixed number of rows, however long. Here the number depends on the
sizes in the page headers of the file, and on the sizes of previous batches.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailerd.changefeed.limits import BatchLimit, Readers, largest_piece_bytes
from tailerd.errors import TooLargeError
from tailerd.reading.parquet_chunks import ColumnChunk
from tailerd.reading.parquet_open import OpenedParquet
from tailerd.reading.parquet_pages import (
    ColumnPages,
    check_pages,
    limit_word_bytes,
    most_decoded_bytes,
    read_pages,
)
from tailerd.storage.base import RemoteFile
from tailerd.threads import release_memory

Reopen = Callable[..., pq.ParquetFile]
"""Opens the same file again with other options of `ParquetFile`."""

BUFFER_BYTES = 1024 * 1024
"""Bytes read at a time from a column that is too large for memory."""

SMALL_BUFFER_BYTES = 64 * 1024
"""The same, if many columns are read at a time."""

BLOCKS = 8
"""A part of the readers' memory that one block of columns may take."""

PARTS = 8
"""A row group is read in so many parts at most if its dictionaries are not decoded for it."""

HELD_BYTES = 8 * 1024 * 1024
"""Maximum size of files that may be read into memory as a whole."""

CODE_BYTES = 4
"""Of the number of a value in a dictionary."""

_FIXED_BYTES = {"BOOLEAN": 1, "INT32": 8, "INT64": 8, "INT96": 12, "FLOAT": 8, "DOUBLE": 8}
_GROWTH = 4

_Numbers = npt.NDArray[np.float64]


class BoundedBatches:
    """Reads row groups of one open file; used by one thread at a time.

    Args:
        opened: The file, opened with the options for its rows.
        reopen: Opens it, or a source with the same bytes, with other options.
        source: The source that it reads.
        name: For error messages.
        limit: Of a batch.
        row_bytes: Memory per row for values that are not in the file.
    """

    def __init__(
        self,
        opened: OpenedParquet,
        reopen: Reopen,
        source: BinaryIO,
        name: str,
        limit: BatchLimit,
        row_bytes: int = 0,
    ) -> None:
        self._opened = opened
        self._file = opened.file
        self._groups = opened.footer.groups
        self._reopen = reopen
        self._source = source
        self._name = name
        self._limit = limit
        self._row_bytes = row_bytes
        self._most_bytes = largest_piece_bytes(limit.memory_bytes)
        self._batch_bytes = min(self._most_bytes, max(limit.max_bytes, limit.memory_bytes // 4))

    def is_small(self, group: int, leaves: Sequence[int]) -> bool:
        """Return whether columns of a row group are small for any content of their pages."""
        return None not in proven_bytes(self._opened, group, leaves, self._source, self._most_bytes)

    def rows(
        self, group: int, columns: Sequence[Sequence[int]], most_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group.

        Args:
            columns: Numbers of the leaf columns of each column to read, ascending.
            most_rows: Of a batch.

        Raises:
            TooLargeError: A page, or a row, does not fit the memory.
            UnsupportedFeatureError: A column is encrypted.
        """
        leaves = [leaf for column in columns for leaf in column]
        self._opened.check_readable(group, leaves)
        chunks = [self._groups[group].chunks[leaf] for leaf in leaves]
        most = min(most_rows, self._groups[group].num_rows)
        left = self._most_bytes - self._row_bytes * most
        proven = proven_bytes(self._opened, group, leaves, self._source, left, rows=most)
        pages = [
            read_pages(self._source, chunk) if size is None else None
            for chunk, size in zip(chunks, proven, strict=True)
        ]
        sizes = None
        if None in proven:
            walked = [
                (leaf, chunk, each)
                for leaf, chunk, each in zip(leaves, chunks, pages, strict=True)
                if each is not None
            ]
            check_pages([each for _, _, each in walked], self._limit.memory_bytes, self._name)
            others = sum(size or 0 for size in proven) / max(1, self._groups[group].num_rows)
            sizes = self._sizes(group, walked, self._row_bytes + others)
        readers = self._limit.readers
        held = _held_bytes(chunks, pages)
        if readers is not None and not readers.take(sum(held)):
            known = dict(zip(leaves, held, strict=True))
            yield from self._in_parts(readers, group, columns, known, sizes, most_rows)
            return
        try:
            if sizes is None:
                yield from _batches(self._file, most_rows, group, leaves)
            else:
                yield from self._read_sized(
                    self._for_chunks(chunks), group, leaves, sizes, most_rows
                )
        finally:
            if readers is not None:
                readers.give_back(sum(held))

    def _in_parts(
        self,
        readers: Readers,
        group: int,
        columns: Sequence[Sequence[int]],
        held: Mapping[int, int],
        sizes: _RowSizes | None,
        most_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows without holding pages meanwhile: each batch opens the file again.

        Columns are read in sequence, in blocks that fit the memory.
        """
        blocks = _blocks(columns, held, readers.total_bytes // BLOCKS)
        at, end = 0, self._groups[group].num_rows
        while at < end:
            most = min(most_rows, end - at)
            count = most if sizes is None else sizes.fitting(at, most, self._batch_bytes)
            with readers.alone():
                parts = [self._part(group, block, at, count) for block in blocks]
                release_memory()
            arrays = [array for part in parts for array in part.columns]
            fields = [field for part in parts for field in part.schema]
            del parts
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            at += count

    def _part(self, group: int, leaves: Sequence[int], start: int, count: int) -> pa.RecordBatch:
        """Return rows [start, start + count) of some columns."""
        file = self._reopen(
            source=self._source,
            metadata=self._file.metadata,
            buffer_size=0 if isinstance(self._source, RemoteFile) else SMALL_BUFFER_BYTES,
        )
        found: list[pa.RecordBatch] = []
        at = 0
        for batch in _batches(file, count, group, leaves):
            first, until = max(start - at, 0), min(start + count - at, batch.num_rows)
            if first < until:
                found.append(batch.slice(first, until - first))
            at += batch.num_rows
            if at >= start + count:
                break
        if sum(batch.num_rows for batch in found) != count:
            raise pa.ArrowInvalid("a row group has fewer rows than its footer says")
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    def _for_chunks(self, chunks: Iterable[ColumnChunk]) -> pq.ParquetFile:
        """Return the file, reopened with buffered reads if the columns are too large for memory."""
        if sum(chunk.stored_bytes for chunk in chunks) <= self._most_bytes:
            return self._file
        return self._reopen(
            source=self._source,
            metadata=self._file.metadata,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
        )

    def _hold(self, chunks: Iterable[ColumnChunk]) -> None:
        """Read a small file at once if most of it is needed, to not read dictionaries twice."""
        if isinstance(self._source, RemoteFile | io.BytesIO):
            return
        size = self._source.seek(0, 2)
        if size <= HELD_BYTES and 2 * sum(c.stored_bytes for c in chunks) > size:
            self._source.seek(0)
            self._source = io.BytesIO(self._source.read())
            self._file = self._reopen(source=self._source, metadata=self._file.metadata)

    def _sizes(
        self, group: int, columns: list[tuple[int, ColumnChunk, ColumnPages]], row_bytes: float
    ) -> _RowSizes | None:
        """Return the sizes of rows; None if all together are far less than a batch."""
        rows = self._groups[group].num_rows
        paged: list[tuple[ColumnPages, float]] = []
        coded: list[tuple[int, ColumnPages, float]] = []
        for leaf, chunk, pages in columns:
            per_row = max(sum(pages.values), chunk.num_values) / max(1, rows)
            width = _width(self._file.schema.column(leaf), chunk)
            if width is not None:
                row_bytes += width * per_row
                continue
            paged.append((pages, per_row))
            if chunk.has_prefixes:
                row_bytes += max(pages.decoded_bytes, default=0) * per_row
            elif pages.dictionary_bytes:
                coded.append((leaf, pages, per_row))
        longest = sum(pages.longest_value_bytes * per_row for _, pages, per_row in coded)
        # Decoding the dictionaries takes longer than reading a few parts.
        if longest * min(rows, self._limit.max_rows) > PARTS * self._batch_bytes:
            self._hold([chunk for _, chunk, _ in columns])
            longest = self._longest(group, coded)
        row_bytes += longest
        total = row_bytes * rows + sum(sum(pages.decoded_bytes) for pages, _ in paged)
        return None if total <= self._batch_bytes / PARTS else _RowSizes(row_bytes, paged)

    def _longest(self, group: int, coded: list[tuple[int, ColumnPages, float]]) -> float:
        """Return a limit for the length per row of the longest dictionary values."""
        total, others = 0.0, []
        for leaf, pages, per_row in coded:
            limit = limit_word_bytes(self._source, self._groups[group].chunks[leaf])
            total += (limit or 0) * per_row
            if limit is None:
                others.append((leaf, pages, per_row))
        return total + self._longest_decoded(group, others) if others else total

    def _longest_decoded(self, group: int, coded: list[tuple[int, ColumnPages, float]]) -> float:
        """Return what `_longest` does, exactly: Arrow decodes the dictionaries."""
        paths = [self._file.schema.column(leaf).path for leaf, _, _ in coded]
        file = self._reopen(
            source=self._source,
            metadata=self._file.metadata,
            read_dictionary=paths,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
        )
        total = 0.0
        for leaf, pages, per_row in coded:
            batch = next(_batches(file, 1, group, [leaf]), None)
            words = None if batch is None else _read_dictionary(batch.column(0))
            if words is None or len(words) < pages.dictionary_values:
                total += pages.longest_value_bytes * per_row
            else:
                total += (pc.max(pc.binary_length(words)).as_py() or 0) * per_row
        return total

    def _read_sized(
        self,
        file: pq.ParquetFile,
        group: int,
        leaves: Sequence[int],
        sizes: _RowSizes,
        most_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        at, most = 0, most_rows
        held = _HeldBatches(most_rows, self._batch_bytes // PARTS)
        count = sizes.fitting(at, most, self._batch_bytes)
        # The number of rows is set before every batch, and may change from one to the next.
        for batch in _batches(file, count, group, leaves):
            at += batch.num_rows
            taken = batch.get_total_buffer_size()
            if taken > self._batch_bytes:
                # Lists are longer here than on average.
                if batch.num_rows == 1 and taken > 2 * self._most_bytes:
                    raise TooLargeError.within(
                        self._limit.memory_bytes, f"A row of {self._name} has {taken >> 20} MiB"
                    )
                most = max(1, batch.num_rows // (taken // self._batch_bytes + 1))
            else:
                most = min(most_rows, most * _GROWTH)
            yield from held.add(batch, taken + batch.num_rows * self._row_bytes)
            del batch
            file.reader.set_batch_size(sizes.fitting(at, most, self._batch_bytes))
        yield from held.take()


def proven_bytes(
    opened: OpenedParquet,
    group: int,
    leaves: Sequence[int],
    source: BinaryIO,
    most_bytes: int,
    coded: Collection[int] = (),
    rows: int | None = None,
) -> list[int | None]:
    """Return the maximum bytes of columns, decoded; None where only their page headers show it.

    Columns come in sequence, if all of them fit `most_bytes`; `coded` are read as dictionaries.
    With `rows`, the bytes are those of all pages, and of so many rows at a time.
    """
    schema, left = opened.file.schema, most_bytes
    found = list[int | None]()
    for leaf in leaves:
        chunk, column = opened.footer.groups[group].chunks[leaf], schema.column(leaf)
        decoded = most_decoded_bytes(chunk)
        width = CODE_BYTES if leaf in coded else _width(column, chunk)
        # The pages of a list may have more values than the footer says.
        is_flat = decoded <= left and not column.max_repetition_level
        most = decoded if width is None else width
        values = chunk.num_values if rows is None else min(rows, chunk.num_values)
        if is_flat and width is None and decoded * (values + 1) > left:
            longest = None if chunk.has_prefixes else limit_word_bytes(source, chunk)
            most = decoded if longest is None else longest
        size = decoded + values * most
        is_proven = is_flat and size <= left
        found.append(size if is_proven else None)
        left -= size if is_proven else 0
    return found


def _width(column: pq.ColumnSchema, chunk: ColumnChunk) -> int | None:
    if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return max(16, int(column.length))
    return _FIXED_BYTES.get(chunk.physical_type)


class _HeldBatches:
    """Joins batches that are smaller than they could have been."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches that are complete with this one."""
        rows = self._rows + batch.num_rows
        if rows > self._most_rows or self._bytes + size > self._most_bytes:
            yield from self.take()
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += size
        if self._rows >= self._most_rows or self._bytes > self._most_bytes:
            yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield what is held."""
        batches, self._batches, self._rows, self._bytes = self._batches, [], 0, 0
        if batches:
            yield batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _batches(
    file: pq.ParquetFile, most_rows: int, group: int, leaves: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    # By number: names may repeat, and contain dots.
    batches: Iterator[pa.RecordBatch] = file.reader.iter_batches(
        most_rows, row_groups=[group], column_indices=list(leaves), use_threads=False
    )
    return batches


def _held_bytes(chunks: Sequence[ColumnChunk], pages: Sequence[ColumnPages | None]) -> list[int]:
    """Return about how much an open reader holds of each column: its bytes and a decoded page."""
    return [
        3 * chunk.stored_bytes
        if page is None
        else min(chunk.stored_bytes, BUFFER_BYTES) + 2 * page.most_bytes
        for chunk, page in zip(chunks, pages, strict=True)
    ]


def _blocks(
    columns: Sequence[Sequence[int]], held: Mapping[int, int], most_bytes: int
) -> list[list[int]]:
    """Return the leaf columns in blocks of about `most_bytes`, at least one column each."""
    blocks: list[list[int]] = []
    size = 0
    for column in columns:
        own = sum(held[leaf] for leaf in column)
        if not blocks or size + own > most_bytes:
            blocks.append([])
            size = 0
        blocks[-1] += column
        size += own
    return blocks


class _RowSizes:
    """Decoded sizes of the rows of a row group, estimated from the page headers.

    Attributes:
        longest: Maximum bytes per row of everything that pages do not describe.
    """

    def __init__(self, longest: float, paged: Iterable[tuple[ColumnPages, float]]) -> None:
        """Initialize.

        Args:
            paged: Columns that pages describe, and how many of their values a row has.
        """
        self.longest = longest
        self._edges: list[_Numbers] = []
        self._totals: list[_Numbers] = []
        for pages, per_row in paged:
            edges = np.cumsum([0, *pages.values]) / max(per_row, 1e-9)
            self._edges.append(edges.astype(np.float64))
            self._totals.append(np.cumsum([0, *pages.decoded_bytes]).astype(np.float64))

    def fitting(self, start: int, most_rows: int, most_bytes: int) -> int:
        """Return how many rows from `start` on take no more than `most_bytes`; at least one."""
        count = max(1, most_rows)
        while count > 1 and self.longest * count > most_bytes:
            count //= 2
        while count > 1 and self._measure(start, count) > most_bytes:
            count //= 2
        return count

    def _measure(self, start: int, count: int) -> float:
        total = self.longest * count
        for edges, totals in zip(self._edges, self._totals, strict=True):
            before, after = np.interp([start, start + count], edges, totals)
            total += float(after - before)
        return total


def _read_dictionary(column: pa.Array) -> pa.Array | None:
    """Return the dictionary values of the single leaf of a column."""
    while not pa.types.is_dictionary(column.type):
        if pa.types.is_struct(column.type) and column.type.num_fields == 1:
            column = column.field(0)
        elif pa.types.is_map(column.type):
            return None
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            column = column.values
        else:
            return None
    return column.dictionary
