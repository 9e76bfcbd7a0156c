"""The payload of tasks: rows of data files, and the delete files that apply to them. Picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError
from tailerd.formats.iceberg.columns import TableSchema
from tailerd.rows.groups import FilesToCompare

FORMAT = "iceberg"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file: its URL, and its format in lower case."""

    url: str
    file_format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A deletion vector in a Puffin file.

    Attributes:
        rows: Number of rows that it deletes.
    """

    url: str
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDeletes:
    """Equality deletes by one set of columns.

    Attributes:
        schema: These columns only.
        identities: Values that the files' partition has for columns that they may lack.
    """

    schema: TableSchema
    files: tuple[StoredFile, ...]
    identities: tuple[tuple[int, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """Delete files that apply to one data file."""

    vectors: tuple[Vector, ...] = ()
    positions: tuple[StoredFile, ...] = ()
    keys: tuple[KeyDeletes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.vectors or self.positions or self.keys)


NO_DELETES = Deletes()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRows:
    """Rows of one data file.

    Attributes:
        path: As in the metadata: position deletes name the file by it.
        number: As in `RowPositions`.
        identities: Values of identity partitions, by field id of the column.
        only: Rows that these delete; None for all rows of the file.
        without: Rows that these delete are left out.
        first_row_id: Id of the first row; None if rows have none.
        sequence: Sequence number of the commit that added the file.
        share_index, share_count: Which row groups; see `reading.file_scan.FileShare`.
    """

    file: StoredFile
    path: str
    number: int
    schema: TableSchema
    size_bytes: int
    num_rows: int
    identities: tuple[tuple[int, Any], ...] = ()
    only: Deletes | None = None
    without: Deletes = NO_DELETES
    first_row_id: int | None = None
    sequence: int = 0
    share_index: int = 0
    share_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRows:
    """The difference of removed and added rows.

    Attributes:
        groups: Every file is in one.
        key: Key columns by which a delete and an insert are paired to an update; empty: row ids,
            if all rows have one, else no pairing.
        is_rewrite: The commit claims not to change rows: a difference is an error.
        prefix: As in `RowPositions`.
    """

    removed: tuple[DataRows, ...]
    added: tuple[DataRows, ...]
    schema: TableSchema
    groups: tuple[FilesToCompare, ...]
    key: tuple[str, ...] = ()
    is_rewrite: bool = False
    prefix: str = ""

    @property
    def have_row_ids(self) -> bool:
        """Whether all rows have ids."""
        return all(each.first_row_id is not None for each in (*self.removed, *self.added))


Payload = DataRows | ComparedRows


def decode_payload(task: ChangeTask) -> Payload:
    """Return the payload of a task that was planned here.

    Raises:
        BugError: It is of another format.
    """
    if not isinstance(task.payload, DataRows | ComparedRows):
        raise BugError(f"A task of the format {task.format} came to the reader of Iceberg tables.")
    return task.payload
