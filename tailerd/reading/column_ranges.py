"""Where the columns of row groups lie in a file, for stores where each read costs a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow.parquet as pq

from tailerd.reading.parquet_pages import first_byte

_HOLE_BYTES = 64 * 1024
"""What lies between two columns and is smaller than this is read with them."""
_MORE_BYTES = 128
"""Readers add a little to the columns of some old writers, whose footers say too little."""

Range = tuple[int, int]
"""Where it begins, and how long it is."""


def ranges_ahead(
    about: pq.FileMetaData,
    leaves: Sequence[int],
    group: int,
    following: Iterable[int],
    max_bytes: int,
) -> list[Range]:
    """Return what to fetch for a row group, and for those that follow within `max_bytes`."""
    ranges = column_ranges(about, group, leaves)
    for other in following:
        ahead = column_ranges(about, other, leaves)
        max_bytes -= sum(length for _, length in ahead)
        if max_bytes < 0:
            break
        ranges += ahead
    return ranges


def column_ranges(about: pq.FileMetaData, group: int, leaves: Iterable[int]) -> list[Range]:
    """Return the ranges of some leaf columns of a row group, neighbours joined."""
    row_group = about.row_group(group)
    chunks = (row_group.column(leaf) for leaf in leaves)
    found = [(first_byte(chunk), chunk.total_compressed_size + _MORE_BYTES) for chunk in chunks]
    joined: list[Range] = []
    for start, length in sorted(found):
        last, last_length = joined[-1] if joined else (0, 0)
        if joined and start <= last + last_length + _HOLE_BYTES:
            joined[-1] = (last, max(last_length, start + length - last))
        else:
            joined.append((start, length))
    return joined
