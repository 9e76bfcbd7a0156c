"""The payload of tasks: rows of fragments in a version. Picklable, without secrets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyroaring

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError
from tailerd.formats.lance.protocol.columns import ColumnSource
from tailerd.formats.plain_schema import decode_schema
from tailerd.rows.hash_kernels import Rows

FORMAT = "lance"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A version of a table, independent of the process.

    Attributes:
        url: The table's folder.
        manifest: Where the version's manifest is.
        identity: Distinguishes it from the same version of a table that was created again.
    """

    url: str
    version: int
    manifest: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRows:
    """Live rows of one fragment.

    Attributes:
        files: URLs of its data files.
        is_legacy: Whether they are of version 1.
        live_rows: Number of live rows; None if not known.
        size_bytes: Of the files; 0 if not known.
        schema: The columns of the rows, as encoded by `plain_schema`.
        sources: Where each column is in this version; None for a column that it does not have.
        has_blobs: Whether single values may be very large.
        offsets: Physical offsets of the wanted rows, as a Roaring bitmap; None for all.
        share: Half-open range among the live rows, in order; None for all.
    """

    table: TableVersion
    fragment: int
    files: tuple[str, ...]
    is_legacy: bool
    live_rows: int | None
    size_bytes: int
    schema: bytes
    sources: tuple[ColumnSource | None, ...]
    has_blobs: bool = False
    offsets: bytes | None = None
    share: tuple[int, int] | None = None

    @property
    def rows(self) -> int | None:
        """Number of wanted rows; None if not known."""
        if self.share is not None:
            return self.share[1] - self.share[0]
        return self.live_rows if self.offsets is None else len(decode_offsets(self.offsets))

    @property
    def requested_bytes(self) -> int:
        """Estimated bytes of the wanted rows in the files."""
        if self.offsets is None or not self.live_rows:
            return self.size_bytes
        requested = len(decode_offsets(self.offsets))
        return min(self.size_bytes, self.size_bytes * requested // self.live_rows + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedColumns:
    """A fragment of which some columns are in other files after the commit.

    Rows that are live before and after are compared in these columns; both sides have the schema
    of the new version.

    Attributes:
        changed: Names of the columns.
        prefix: As in `RowPositions`.
    """

    before: FragmentRows
    after: FragmentRows
    changed: tuple[str, ...]
    prefix: str = ""

    @property
    def schema(self) -> bytes:
        """The columns of the rows."""
        return self.after.schema

    @property
    def files(self) -> tuple[str, ...]:
        """URLs of the data files of both sides."""
        return (*self.before.files, *self.after.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFragments:
    """Removed and added rows, of which equal ones cancel.

    Attributes:
        updates: Fragments whose rows are read after the deletes and before the inserts: a key of
            theirs may have been another row's before, and may be another's afterwards.
        key: Key columns by which a delete and an insert are paired to an update: names, or
            `ROW_ID`; empty for none.
        prefix: As in `RowPositions`.
    """

    removed: tuple[FragmentRows, ...]
    added: tuple[FragmentRows, ...]
    schema: bytes
    updates: tuple[ChangedColumns, ...] = ()
    key: tuple[str, ...] = ()
    prefix: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """URLs of the data files of removed and added rows."""
        return tuple(url for each in (*self.removed, *self.added) for url in each.files)


Payload = FragmentRows | ChangedColumns | ComparedFragments


def decode_payload(task: ChangeTask) -> Payload:
    """Return the payload of a task of this format.

    Raises:
        BugError: It is of another format.
    """
    if isinstance(task.payload, FragmentRows | ChangedColumns | ComparedFragments):
        return task.payload
    raise BugError(f"A task of the format {task.format} came to the reader of Lance tables.")


def file_number(fragment: int, *, is_new: bool) -> int:
    """Return the file number (`RowPositions`) of one side of a fragment in a version."""
    return 2 * fragment + is_new


def encode_offsets(offsets: Rows) -> bytes:
    """Return offsets encoded for `decode_offsets`."""
    return bytes(pyroaring.BitMap(offsets.astype(np.uint32)).serialize())


def decode_offsets(encoded: bytes) -> Rows:
    """Return offsets, ascending."""
    return np.array(pyroaring.BitMap.deserialize(encoded), np.int64)


def decode_columns(payload: Payload) -> pa.Schema:
    """Return the columns of the rows of a task."""
    return decode_schema(payload.schema)
