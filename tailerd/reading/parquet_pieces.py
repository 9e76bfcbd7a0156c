"""Reads a few rows of a row group from the pages that contain them, not the whole row group.

PyArrow reads row groups from their first row on. So the wanted pages are put into a small Parquet
file in memory, with the schema of the file and a row group of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tailerd.errors import CorruptLogError
from tailerd.reading.parquet_batches import BoundedBatches
from tailerd.reading.parquet_chunks import ColumnChunk
from tailerd.reading.parquet_footer import MAGIC, Footer, footer_body, group_fields, read_footer
from tailerd.reading.parquet_open import OpenedParquet
from tailerd.reading.parquet_pages import page_headers
from tailerd.rows.hash_kernels import Rows

MAX_CHUNKS = 2000
"""Of a footer; reading larger footers takes longer than it saves."""
MIN_ROWS = 4 * 20_000
"""Of a row group; smaller ones have few pages."""
SPARSE = 8
"""Minimum ratio of all rows to wanted rows."""
WORTHWHILE = 2
"""Minimum ratio of the rows of all pages to those of the wanted pages, over all columns."""

Span = tuple[int, int]
"""Rows [start, end) of the row group."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Wanted rows near each other.

    Attributes:
        rows: First row, and the row after the last.
        spans: For each column the rows of the pages that contain them.
    """

    rows: Span
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The pages of a leaf column in a row group, up to the last wanted row.

    Attributes:
        dictionary: Byte range of its dictionary, half-open; empty if there is none.
        edges: The first row of each page, and the row after the last.
        offsets: The first byte of each page, and the byte after the last.
    """

    dictionary: Span
    edges: Rows
    offsets: Rows


class RowPieces:
    """Reads rows of one open file by their pages; used by one thread at a time.

    Args:
        opened, source: The file, and the source it reads.
        columns: The leaf columns of each column to read, ascending.
        batches: Reads another file with the same schema.
    """

    def __init__(
        self,
        opened: OpenedParquet,
        source: BinaryIO,
        columns: Sequence[range],
        batches: Callable[[BinaryIO], BoundedBatches],
    ) -> None:
        self._groups = opened.footer.groups
        self._source = source
        self._columns = columns
        self._batches = batches
        schema = opened.file.schema
        leaves = (leaf for column in columns for leaf in column)
        # Pages of repeated columns may begin within a row.
        self._can_read = len(schema) * len(self._groups) <= MAX_CHUNKS and all(
            schema.column(leaf).max_repetition_level == 0 for leaf in leaves
        )

    @cached_property
    def _footer(self) -> Footer | None:
        try:
            return read_footer(self._source, "the file")
        except CorruptLogError:
            return None

    def rows(
        self, group: int, requested: Rows, most_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, int]] | None:
        """Return batches that include the wanted rows, each with the position of its first row.

        Args:
            requested: Positions in the row group, ascending; at least one.
            most_rows: Of a batch.

        Returns:
            None if reading the whole row group is cheaper, or reading by pages is not possible.
        """
        count = self._groups[group].num_rows
        if not self._can_read or count < MIN_ROWS or self._footer is None:
            return None
        leaves = self._leaves(group, int(requested[-1]))
        if leaves is None:
            return None
        pieces = list(_pieces(requested, [_edges(leaves, column) for column in self._columns]))
        decoded = sum(end - start for piece in pieces for start, end in piece.spans)
        if decoded * WORTHWHILE > count * len(self._columns):
            return None
        return self._read(self._footer, group, leaves, pieces, most_rows)

    def _leaves(self, group: int, last: int) -> dict[int, _Leaf] | None:
        """Return the pages up to a row; None if they end before it or have no clear bounds."""
        about = self._groups[group]
        found: dict[int, _Leaf] = {}
        for column in self._columns:
            # Common edges of several leaves are known only from all their pages.
            until = last if len(column) == 1 else about.num_rows - 1
            found |= {leaf: _pages(self._source, about.chunks[leaf], until) for leaf in column}
        return None if any(int(leaf.edges[-1]) <= last for leaf in found.values()) else found

    def _read(
        self,
        footer: Footer,
        group: int,
        leaves: dict[int, _Leaf],
        pieces: Sequence[Piece],
        most_rows: int,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        for piece in pieces:
            parts = []
            for span in sorted(set(piece.spans)):
                positions = [position for position, each in enumerate(piece.spans) if each == span]
                of_span = [self._columns[position] for position in positions]
                chosen = {leaf: leaves[leaf] for column in of_span for leaf in column}
                body = self._body(footer, group, chosen, span)
                batches = self._batches(pa.BufferReader(body)).rows(0, of_span, most_rows)
                first, end = piece.rows[0] - span[0], piece.rows[1] - span[0]
                parts.append((positions, _within(batches, first, end)))
            at = piece.rows[0]
            for batch in _side_by_side(parts):
                yield batch, at
                at += batch.num_rows
            if at != piece.rows[1]:
                raise pa.ArrowInvalid("its pages have fewer rows than their headers say")

    def _body(self, footer: Footer, group: int, leaves: dict[int, _Leaf], span: Span) -> bytes:
        """Return a file with the pages of some rows; its other columns have no pages."""
        out = bytearray(MAGIC)
        chunks = [chunk.fields for chunk in footer.groups[group].chunks]
        for number, leaf in leaves.items():
            start, end = (int(leaf.offsets[np.searchsorted(leaf.edges, row)]) for row in span)
            at = len(out)
            for first, stop in (leaf.dictionary, (start, end)):
                self._source.seek(first)
                out += self._source.read(stop - first)
            chunks[number] = (
                footer.groups[group]
                .chunks[number]
                .describe_pages(
                    at, leaf.dictionary[1] - leaf.dictionary[0], len(out) - at, span[1] - span[0]
                )
            )
        rows = span[1] - span[0]
        described = group_fields(chunks, rows, 0, len(out))
        return bytes(out + footer_body(footer, [described], rows))


def _pages(source: BinaryIO, chunk: ColumnChunk, last: int) -> _Leaf:
    edges, offsets = [0], [chunk.first_byte]
    dictionary = (0, 0)
    for at, header in page_headers(source, chunk):
        end = at + header.header_bytes + header.stored_bytes
        if header.is_dictionary:
            dictionary, offsets[0] = (at, end), end
            continue
        edges.append(edges[-1] + header.values)
        offsets.append(end)
        if edges[-1] > last:
            break
    return _Leaf(dictionary, np.array(edges), np.array(offsets))


def _edges(leaves: dict[int, _Leaf], column: range) -> Rows:
    """Return the rows at which pages of all leaves of a column begin or end."""
    return reduce(np.intersect1d, [leaves[leaf].edges for leaf in column])


def _pieces(requested: Rows, edges: Sequence[Rows]) -> Iterator[Piece]:
    """Yield pieces with all wanted rows, in order, as long as no column needs other pages."""
    at = 0
    while at < len(requested):
        row = requested[at]
        positions = [int(np.searchsorted(each, row, "right")) for each in edges]
        spans = tuple(
            (int(each[position - 1]), int(each[position]))
            for each, position in zip(edges, positions, strict=True)
        )
        stop = int(np.searchsorted(requested, min(end for _, end in spans)))
        yield Piece((int(row), int(requested[stop - 1]) + 1), spans)
        at = stop


def _within(batches: Iterator[pa.RecordBatch], first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield rows [first, end) of the concatenated batches."""
    at = 0
    for batch in batches:
        start, stop = max(first - at, 0), min(end - at, batch.num_rows)
        at += batch.num_rows
        if start < stop:
            yield batch.slice(start, stop - start)
        if at >= end:
            return


def _side_by_side(
    parts: Sequence[tuple[Sequence[int], Iterator[pa.RecordBatch]]],
) -> Iterator[pa.RecordBatch]:
    """Yield batches of all columns, combined from batches of some columns and their positions."""
    waiting: list[pa.RecordBatch | None] = [None] * len(parts)
    while True:
        for number, (_, batches) in enumerate(parts):
            if waiting[number] is None:
                waiting[number] = next(batches, None)
        here = [batch for batch in waiting if batch is not None]
        if len(here) < len(parts):
            return
        count = min(batch.num_rows for batch in here)
        columns = {
            position: (field, column)
            for (positions, _), batch in zip(parts, here, strict=True)
            for position, field, column in zip(
                positions, batch.schema, batch.slice(0, count).columns, strict=True
            )
        }
        ordered = [columns[position] for position in sorted(columns)]
        yield pa.RecordBatch.from_arrays(
            [column for _, column in ordered], schema=pa.schema([field for field, _ in ordered])
        )
        waiting = [batch.slice(count) if batch.num_rows > count else None for batch in here]
