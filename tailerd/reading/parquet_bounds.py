"""What a file's footer says of the values of its columns: it may be loose, or missing."""

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
"""Looking at a value costs some microseconds, and few of them tell files apart."""


def footer_bounds(source: BinaryIO, url: str, memory_bytes: int) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of some leaf columns, by their paths in the file.

    Texts may be cut. A file that cannot be read has none: whoever reads its rows says why.

    Args:
        source: The file, open.
        url, memory_bytes: As `reading.parquet.read_file` has them.
    """
    try:
        check_footer(source, memory_bytes, url)
        about = open_parquet(source, arrow_extensions_enabled=False).metadata
        if about.num_row_groups > MAX_ROW_GROUPS:
            return {}
        columns = (_bounds(about, column) for column in range(about.num_columns))
        return dict(islice((found for found in columns if found is not None), MAX_COLUMNS))
    except (pa.ArrowException, OSError, ValueError, OverflowError, TailerdError):
        # Also a text cut within a letter, and a time that Python does not have.
        return {}


def _bounds(about: pq.FileMetaData, column: int) -> tuple[str, tuple[Any, Any]] | None:
    chunks = [about.row_group(group).column(column) for group in range(about.num_row_groups)]
    found = [chunk.statistics for chunk in chunks]
    if not found or not all(each is not None and each.has_min_max for each in found):
        return None
    bounds = min(each.min for each in found), max(each.max for each in found)
    return chunks[0].path_in_schema, bounds
