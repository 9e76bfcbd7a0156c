"""Byte ranges of the columns of row groups, for stores in which each read is a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailerd.reading.parquet_chunks import RowGroup

_HOLE_BYTES = 64 * 1024
"""Smaller gaps between two columns are read with them."""
_MORE_BYTES = 128
"""Readers add a margin to the columns of some old writers, whose footers understate sizes."""

Range = tuple[int, int]
"""Start and length."""


def ranges_ahead(
    groups: Sequence[RowGroup],
    leaves: Sequence[int],
    group: int,
    following: Iterable[int],
    max_bytes: int,
) -> list[Range]:
    """Return the ranges to fetch for a row group, and for following ones within `max_bytes`."""
    ranges = column_ranges(groups[group], leaves)
    for other in following:
        ahead = column_ranges(groups[other], leaves)
        max_bytes -= sum(length for _, length in ahead)
        if max_bytes < 0:
            break
        ranges += ahead
    return ranges


def column_ranges(group: RowGroup, leaves: Iterable[int]) -> list[Range]:
    """Return the ranges of leaf columns of a row group, adjacent ones merged."""
    chunks = (group.chunks[leaf] for leaf in leaves)
    found = [(chunk.first_byte, chunk.stored_bytes + _MORE_BYTES) for chunk in chunks]
    joined: list[Range] = []
    for start, length in sorted(found):
        last, last_length = joined[-1] if joined else (0, 0)
        if joined and start <= last + last_length + _HOLE_BYTES:
            joined[-1] = (last, max(last_length, start + length - last))
        else:
            joined.append((start, length))
    return joined
