"""Finds column chunks with the same bytes in two files.

Equal bytes are equal values if both files describe their columns in the same way, so such chunks
are not decoded. A writer that rewrites a file for a few of its rows leaves most columns unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import BinaryIO

import pyarrow as pa

from tailerd.errors import TailerdError
from tailerd.reading.column_ranges import column_ranges
from tailerd.reading.conform import FileFields
from tailerd.reading.file_scan import WHOLE_FILE, FileScan
from tailerd.reading.legacy_calendar import LegacyCalendar
from tailerd.reading.parquet import num_leaves
from tailerd.reading.parquet_chunks import RowGroup
from tailerd.reading.parquet_open import OpenedParquet, open_parquet
from tailerd.storage.base import RemoteFile

BLOCK_BYTES = 1024 * 1024
"""Compared at a time."""
MIN_SHARE = 0.5
"""Share of a row group's bytes: if fewer may be equal, its rows are read and compared at once."""
_SHORT_SIZES = re.compile(r"parquet-mr version (0|1\.[0-2])\.")
"""Writers whose footers understate the length of columns."""


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """Rows at the same positions in two files that are equal except in some columns.

    Attributes:
        start, count: The first position, and the number of rows.
        columns: Positions of the columns of the scan that may differ; None: any may.
    """

    start: int
    count: int
    columns: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class FileDifference:
    """How two files may differ.

    Attributes:
        groups: Row groups at the same positions in both that may differ, in order.
        known_rows: Number of leading rows that were compared; later rows may differ.
        rows: Number of rows of each file.
    """

    groups: tuple[GroupDifference, ...]
    known_rows: int
    rows: tuple[int, int]


def compare_files(
    scans: tuple[FileScan, FileScan],
    open_file: Callable[[str], BinaryIO],
    memory_bytes: int,
) -> FileDifference | None:
    """Compare the bytes of two files' columns; blocking.

    Args:
        open_file: Opens a file by its URL.
        memory_bytes: Maximum memory for a footer.

    Returns:
        None if their bytes cannot be compared or one is damaged; reading its rows raises the error.

    Raises:
        TailerdError: As `open_file` raises it.
    """
    one, other = scans
    if replace(one, url=other.url) != other or one.share != WHOLE_FILE or one.select_rows:
        return None
    with open_file(one.url) as source, open_file(other.url) as other_source:
        try:
            files = (
                _File.open(source, one, memory_bytes),
                _File.open(other_source, other, memory_bytes),
            )
            return _difference(*files) if files[0].means_the_same(files[1]) else None
        except (pa.ArrowException, OSError, ValueError, TailerdError):
            return None


@dataclass(frozen=True, slots=True)
class _File:
    source: BinaryIO
    opened: OpenedParquet
    schema: pa.Schema
    leaves: Sequence[Sequence[int]]
    """The leaf columns of each column of the scan; empty if the file lacks the column."""

    @classmethod
    def open(cls, source: BinaryIO, scan: FileScan, memory_bytes: int) -> _File:
        opened = open_parquet(source, memory_bytes, scan.url, arrow_extensions_enabled=False)
        schema = opened.file.schema_arrow
        fields = FileFields(schema, scan.table_names)
        positions = [None if f.constant is not None else fields.find(f) for f in scan.fields]
        firsts = list(accumulate((num_leaves(field.type) for field in schema), initial=0))
        leaves = [
            () if position is None else range(firsts[position], firsts[position + 1])
            for position in positions
        ]
        return cls(source, opened, schema, leaves)

    @property
    def groups(self) -> Sequence[RowGroup]:
        """Its row groups."""
        return self.opened.footer.groups

    @property
    def calendar(self) -> LegacyCalendar | None:
        """The calendar of its old dates and times."""
        return LegacyCalendar.from_notes(self.opened.footer.notes)

    @property
    def num_rows(self) -> int:
        """Number of its rows."""
        return sum(group.num_rows for group in self.groups)

    def means_the_same(self, other: _File) -> bool:
        """Return whether equal bytes of the two files are equal values."""
        return (
            self.leaves == other.leaves
            and self.opened.file.schema.equals(other.opened.file.schema)
            and self.schema.equals(other.schema, check_metadata=False)
            and self.calendar == other.calendar
            and not any(_SHORT_SIZES.match(each.opened.footer.created_by) for each in (self, other))
        )

    def has_like(self, other: _File, group: int, leaf: int) -> bool:
        """Return whether a column may have the same bytes in both files."""
        mine, its = (each.groups[group].chunks[leaf] for each in (self, other))
        return bool(
            mine.stored_bytes == its.stored_bytes
            and mine.compression == its.compression
            and mine.num_values == its.num_values
            and not any(each.is_elsewhere or each.is_encrypted for each in (mine, its))
        )

    def expect(self, group: int, leaves: Sequence[int]) -> None:
        if isinstance(self.source, RemoteFile):
            self.source.expect(column_ranges(self.groups[group], leaves))


def _difference(one: _File, other: _File) -> FileDifference:
    groups: list[GroupDifference] = []
    start = 0
    for number in range(min(len(one.groups), len(other.groups))):
        count = one.groups[number].num_rows
        if count != other.groups[number].num_rows:
            break
        columns = _unequal_columns(one, other, number)
        if columns is None or columns:
            groups.append(GroupDifference(start, count, columns))
        start += count
    return FileDifference(tuple(groups), start, (one.num_rows, other.num_rows))


def _unequal_columns(one: _File, other: _File, group: int) -> tuple[int, ...] | None:
    """Return the columns of the scan that differ in a row group; None if most of it differs."""
    chunks = one.groups[group].chunks
    sizes = {leaf: chunks[leaf].stored_bytes for leaves in one.leaves for leaf in leaves}
    like = sorted(leaf for leaf in sizes if one.has_like(other, group, leaf))
    # By the footers alone, so that little is read of files that have little in common.
    least = MIN_SHARE * sum(sizes.values())
    if sum(sizes[leaf] for leaf in like) < least:
        return None
    one.expect(group, like)
    other.expect(group, like)
    equal = {leaf for leaf in like if _are_equal(one, other, group, leaf)}
    if sum(sizes[leaf] for leaf in equal) < least:
        return None
    return tuple(
        position for position, leaves in enumerate(one.leaves) if not equal.issuperset(leaves)
    )


def _are_equal(one: _File, other: _File, group: int, leaf: int) -> bool:
    chunks = [each.groups[group].chunks[leaf] for each in (one, other)]
    left = chunks[0].stored_bytes
    one.source.seek(chunks[0].first_byte)
    other.source.seek(chunks[1].first_byte)
    while left > 0:
        size = min(left, BLOCK_BYTES)
        block = one.source.read(size)
        if len(block) < size or block != other.source.read(size):
            return False
        left -= size
    return True
