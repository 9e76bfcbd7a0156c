"""Reads column bounds from a file's footer; they may be loose, or missing."""

from __future__ import annotations

from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.errors import TailerdError
from tailerd.reading.parquet_open import open_parquet
from tailerd.reading.parquet_pages import check_footer

MAX_COLUMNS = 8
MAX_ROW_GROUPS = 64
"""Reading a value takes some microseconds, and a few are enough to distinguish files."""


def footer_bounds(source: BinaryIO, url: str, memory_bytes: int) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of some leaf columns, by their paths in the file.

    Texts may be truncated. Empty for a file that cannot be read; reading its rows raises the error.

    Args:
        source: The open file.
        url, memory_bytes: As in `reading.parquet.read_file`.
    """
    try:
        check_footer(source, memory_bytes, url)
        about = open_parquet(source, arrow_extensions_enabled=False).metadata
        if about.num_row_groups > MAX_ROW_GROUPS:
            return {}
        columns = (_bounds(about, column) for column in range(about.num_columns))
        return dict(islice((found for found in columns if found is not None), MAX_COLUMNS))
    except (pa.ArrowException, OSError, ValueError, OverflowError, TailerdError):
        # Also a text truncated within a character, and a time out of Python's range.
        return {}


def _bounds(about: pq.FileMetaData, column: int) -> tuple[str, tuple[Any, Any]] | None:
    chunks = [about.row_group(group).column(column) for group in range(about.num_row_groups)]
    found = [chunk.statistics for chunk in chunks]
    if not found or not all(each is not None and each.has_min_max for each in found):
        return None
    bounds = min(each.min for each in found), max(each.max for each in found)
    return chunks[0].path_in_schema, bounds
