"""The payload of a Delta change task: a file, its schema, and which of its rows to read."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.offset import ConsecutiveVersions
from tailerd.errors import BugError
from tailerd.rows.groups import ColumnBounds

FORMAT = "delta"
"""Name of this table format."""

VERSIONS = ConsecutiveVersions()
"""Versions of a Delta table, counted from 0 without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """A deletion vector as referenced by an action.

    Attributes:
        storage_type: `u` (relative to the table), `p` (absolute) or `i` (inline).
        path_or_inline: As in the log; part of the identity.
        offset: Start in the file; None differs from 0 (it is part of the identity).
        size_bytes: Length of the serialized bitmap.
        cardinality: Number of rows it removes.
        url: Resolved location of the file; empty if inline.

    Protocol: PROTOCOL.md#deletion-vectors
    """

    storage_type: str
    path_or_inline: str
    offset: int | None
    size_bytes: int
    cardinality: int
    url: str = ""

    @property
    def unique_id(self) -> str:
        """Identity of the vector for one file."""
        suffix = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The selected rows of a file: (all, or those in `include`) without those in `exclude`."""

    include: DeletionVector | None = None
    exclude: DeletionVector | None = None


ALL_ROWS = RowFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIds:
    """The row-tracking columns of a file, and the defaults for rows without a value there.

    Attributes:
        id_column, version_column: Names of columns in Parquet.
        first_id: Id of the first row; incremented by one for each row after it.
        commit_version: Version that changed the rows last.

    Protocol: PROTOCOL.md#row-tracking
    """

    id_column: str
    version_column: str
    first_id: int
    commit_version: int


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of one version, as the source's own text; shared by many tasks.

    Attributes:
        text: Delta's `schemaString`.
        partition_columns: Logical names, in order.
        column_mapping: `none`, `name` or `id`.
    """

    text: str
    partition_columns: tuple[str, ...] = ()
    column_mapping: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A task's payload: one file's rows, or the share of its row groups `index` of `count`.

    Attributes:
        url: The file, absolute.
        schema: Of the version whose rows they are.
        partition_values: (physical name, serialized value or None) pairs, as in the log.
        rows: Which rows are selected.
        row_ids: Row ids, if they show which rows a commit carried over.
        share_index, share_count: Which row groups; see `reading.file_scan.FileShare`.
        bounds: Known bounds of the rows by physical name, of columns that a condition names.
    """

    url: str
    schema: TableSchema
    partition_values: tuple[tuple[str, str | None], ...] = ()
    rows: RowFilter = ALL_ROWS
    row_ids: RowIds | None = None
    share_index: int = 0
    share_count: int = 1
    bounds: tuple[tuple[str, ColumnBounds], ...] = ()


def data_file(task: ChangeTask) -> DataFile:
    """Return the file of a task that was planned here."""
    if not isinstance(task.payload, DataFile):
        raise BugError(f"A task of the format {task.format} was given to Delta's reader.")
    return task.payload


@functools.lru_cache(maxsize=1024)
def schema_id(schema: TableSchema) -> str:
    """Return a hash of `schemaString` and the partition columns.

    The order of keys in the text does not matter: a checkpoint may write a schema in another order
    than the commit it comes from.
    """
    try:
        text = json.dumps(json.loads(schema.text), sort_keys=True)
    except (ValueError, RecursionError):
        # Reading the rows raises the error.
        text = schema.text
    content = json.dumps([text, list(schema.partition_columns)])
    return hashlib.sha256(content.encode()).hexdigest()[:32]
