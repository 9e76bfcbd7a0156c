"""Reads column bounds from a file's footer; they may be loose, or missing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa

from tailerd.errors import TailerdError
from tailerd.reading.parquet_chunks import ColumnChunk, FileFooter
from tailerd.reading.parquet_footer import UNREADABLE
from tailerd.reading.parquet_open import open_parquet

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
