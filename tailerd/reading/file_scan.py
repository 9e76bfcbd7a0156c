"""What to read from one file, independent of any table format. Small and pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.reading.row_selection import SelectRows


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldScan:
    """One column, or one part of a nested column, and how to find it in the file.

    Attributes:
        target: Name and Arrow type of the result.
        name: Its name in the file; used unless `field_id` is given.
        field_id: Its Parquet field id; a file without that id lacks the column.
        other_names: Its names in files that have no field ids at all; only with `field_id`.
        children: Fields of a struct; the element of a list; key and value of a map.
        constant: The value of every row; then nothing is read.
        pad_to: Length in characters to which a text is padded with spaces.
        default: Replaces null, and is the value of all rows if the file lacks the column.
        missing: The value of all rows if the file lacks the column; nulls in the file stay null.
        is_uuid: The file has the 16 bytes of a UUID, the result its text.
        first_default: As `default`, for values that count up: the value for the file's first row,
            incremented by one for each row after it. The type is int64.
    """

    target: pa.Field
    name: str = ""
    field_id: int | None = None
    other_names: tuple[str, ...] = ()
    children: tuple[FieldScan, ...] = ()
    constant: pa.Scalar | None = None
    pad_to: int | None = None
    default: pa.Scalar | None = None
    first_default: int | None = None
    missing: pa.Scalar | None = None
    is_uuid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShare:
    """The row groups of a file whose middle is in part `index` of `count` equal parts of it.

    The shares of a file have each of its rows once; one may have none.
    """

    index: int
    count: int

    def has(self, start: int, end: int, total: int) -> bool:
        """Return whether bytes [start, end) of `total` belong to this share."""
        return (start + end) * self.count // (2 * max(total, 1)) == self.index


PARQUET = "parquet"
WHOLE_FILE = FileShare(index=0, count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """What to read of one data file.

    Attributes:
        url: The file.
        fields: The columns of the result, in order.
        select_rows: Selects the rows; None for all.
        share: Which row groups.
        change_column: Name of the file's column of change types; empty if it has none.
        table_names: Names in the file of all columns of the table, also of those not in `fields`.
        filters: Conditions on the columns of the result; row groups of which no row meets them may
            be left out.
        file_format: `parquet`, or what `reading.other_files` reads.
    """

    url: str
    fields: tuple[FieldScan, ...]
    select_rows: SelectRows | None = None
    share: FileShare = WHOLE_FILE
    change_column: str = ""
    table_names: frozenset[str] = frozenset()
    filters: tuple[ColumnFilter, ...] = ()
    file_format: str = PARQUET

    @property
    def schema(self) -> pa.Schema:
        """Schema of the result."""
        return pa.schema([field.target for field in self.fields])
