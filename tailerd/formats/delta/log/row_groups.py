"""Assembles Parquet files from row groups: encoded here, or copied unchanged from another file.

Most row groups of a checkpoint have the same content as in the previous one. Decoding and encoding
them again is nearly the whole cost of a checkpoint, so those without removed files are copied byte
for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.errors import BugError, CorruptLogError
from tailerd.formats.delta.protocol.checkpoint_columns import DICTIONARIES, STATISTICS
from tailerd.formats.delta.protocol.checkpoint_form import PARTITIONS_PARSED, STATS, STATS_PARSED
from tailerd.reading.parquet_footer import (
    MAGIC,
    TAIL_BYTES,
    Chunk,
    Footer,
    Group,
    footer_body,
    group_fields,
)

COMPRESSION = "snappy"
"""Supported by every reader of Delta tables."""

_PARSED = (f"add.{STATS_PARSED}.", f"add.{PARTITIONS_PARSED}.")


def read_pages(source: BinaryIO, chunk: Chunk) -> bytes:
    """Read the raw bytes of a column chunk; blocking.

    Raises:
        CorruptLogError: The file is truncated.
    """
    source.seek(chunk.start)
    pages = source.read(chunk.size_bytes)
    if len(pages) < chunk.size_bytes:
        raise CorruptLogError("A checkpoint file ends in the middle of a column.")
    return pages


def encode_group(batch: pa.RecordBatch) -> bytes:
    """Return a Parquet file of one row group."""
    names = batch.schema.names
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        batch.schema,
        compression=COMPRESSION,
        use_dictionary=[leaf for leaf in DICTIONARIES if leaf.split(".")[0] in names],
        write_statistics=[leaf for leaf in STATISTICS if _has_leaf(batch.schema, leaf)],
    ) as writer:
        writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _has_leaf(schema: pa.Schema, leaf: str) -> bool:
    top, *below = leaf.split(".")
    if top not in schema.names:
        return False
    kind = schema.field(top).type
    for name in below:
        if kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return True


def parse_footer(body: bytes) -> Footer:
    """Return the footer of a file in memory."""
    [size] = struct.unpack("<I", body[-TAIL_BYTES:-4])
    return Footer.parse(body[-TAIL_BYTES - size : -TAIL_BYTES])


class RowGroupFile:
    """A Parquet file being written; blocking.

    Args:
        write: Writes the next bytes.
    """

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self._write = write
        self._at = 0
        self._groups: list[dict[int, tuple[int, object]]] = []
        self._rows = 0
        self._like: Footer | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Encode rows as one row group; all batches have the same schema."""
        body = encode_group(batch)
        footer = parse_footer(body)
        self._like = self._like or footer
        for group in footer.groups:
            self._put(
                [(chunk, body[chunk.start : chunk.start + chunk.size_bytes])
                 for chunk in group.chunks],
                group.rows,
            )  # fmt: skip

    def copy(
        self,
        source: BinaryIO,
        chunks: Mapping[str, Chunk],
        blank: bytes,
        rows: int,
        pages: Mapping[str, bytes] | None = None,
    ) -> None:
        """Copy a row group of another file.

        Args:
            chunks: Its columns by path.
            blank: A file of as many rows and with this file's schema; provides the other columns.
            pages: Of columns that were read already, by path.
        """
        footer = parse_footer(blank)
        self._like = self._like or footer
        parts, known = [], pages or {}
        for path, empty in zip(footer.leaves, footer.groups[0].chunks, strict=True):
            chunk = chunks.get(path)
            if chunk is None:
                parts.append((empty, blank[empty.start : empty.start + empty.size_bytes]))
                continue
            parts.append((chunk, known[path] if path in known else read_pages(source, chunk)))
        self._put(parts, rows)

    def _put(self, parts: list[tuple[Chunk, bytes]], rows: int) -> None:
        if not self._at:
            self._send(MAGIC)
        first, fields = self._at, []
        for chunk, pages in parts:
            fields.append(chunk.moved_to(self._at))
            self._send(pages)
        self._groups.append(group_fields(fields, rows, len(self._groups), self._at - first))
        self._rows += rows

    def _send(self, data: bytes) -> None:
        self._write(data)
        self._at += len(data)

    def close(self) -> None:
        """Write the footer."""
        if self._like is None:
            raise BugError("A Parquet file without rows was closed.")
        self._send(footer_body(self._like, self._groups, self._rows))


class GroupCopier:
    """Decides which row groups of a checkpoint file can be copied, and which of their columns.

    Args:
        source: Footer of the checkpoint file.
        target: Footer of a file with the columns to be written.
    """

    def __init__(self, source: Footer, target: Footer) -> None:
        self._positions = {path: index for index, path in enumerate(source.leaves)}
        # The blank has `dataChange` false for every file.
        self._copied = [
            path for path in target.leaves if path.startswith("add.") and path != "add.dataChange"
        ]
        self._is_same = all(
            source.leaves[path] == shape
            for path, shape in target.leaves.items()
            if path in source.leaves and path.startswith("add.")
        )
        adds = {path for path in source.leaves if path.startswith("add.")}
        requested = set(self._copied)
        self._has_parsed = any(path.startswith(_PARSED[0]) for path in adds)
        self._lacks_parsed = any(path.startswith(_PARSED) for path in requested - adds)
        self._wants_text = f"add.{STATS}" in requested
        self._wants_parsed = any(path.startswith(_PARSED[0]) for path in requested)

    def select_columns(self, group: Group) -> dict[str, Chunk] | None:
        """Return the columns of a row group to copy, by path; None if it must be decoded.

        It can be copied if every row is a file, and statistics need no conversion.
        """
        if not self._is_same or self._lacks_parsed or self._nulls(group, "add.path") != 0:
            return None
        if self._has_parsed and not self._has_both(group):
            return None
        columns = {
            path: group.chunks[self._positions[path]]
            for path in self._copied
            if path in self._positions
        }
        return columns if all(chunk.is_compressed for chunk in columns.values()) else None

    def _has_both(self, group: Group) -> bool:
        """Return whether no row has its statistics in only one of the two forms."""
        if self._nulls(group, f"add.{STATS}") == 0:
            return not self._wants_parsed or self._nulls(group, f"{_PARSED[0]}numRecords") == 0
        return not self._wants_text and self._nulls(group, f"{_PARSED[0]}numRecords") == 0

    def _nulls(self, group: Group, path: str) -> int | None:
        index = self._positions.get(path)
        return None if index is None else group.chunks[index].null_count
