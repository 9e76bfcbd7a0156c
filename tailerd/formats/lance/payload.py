"""What tasks carry: which rows of which fragments, in which version. Picklable, without secrets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyroaring

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError
from tailerd.formats.plain_schema import decode_schema
from tailerd.rows.hash_kernels import Rows

FORMAT = "lance"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A version of a table, as other processes find it.

    Attributes:
        url: The table's folder.
        manifest: Where the version's manifest is.
        identity: What tells it from the same version of a table that was made again.
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
        live_rows: How many there are; None where it is not known.
        size_bytes: Of the files; 0 where that is not known.
        schema: The columns of the rows, as `plain_schema` encodes them.
        names: The column that each is in this version; None for one that it does not have.
        has_blobs: Whether single values may be very large.
        offsets: Physical offsets of the rows that are wanted, as a Roaring bitmap; None for all.
        share: Of the live rows, counted, the first and the last but one; None for all.
    """

    table: TableVersion
    fragment: int
    files: tuple[str, ...]
    is_legacy: bool
    live_rows: int | None
    size_bytes: int
    schema: bytes
    names: tuple[str | None, ...]
    has_blobs: bool = False
    offsets: bytes | None = None
    share: tuple[int, int] | None = None

    @property
    def rows(self) -> int | None:
        """How many rows are wanted; None where it is not known."""
        if self.share is not None:
            return self.share[1] - self.share[0]
        return self.live_rows if self.offsets is None else len(decode_offsets(self.offsets))

    @property
    def wanted_bytes(self) -> int:
        """About how many bytes of the files hold these rows."""
        if self.offsets is None or not self.live_rows:
            return self.size_bytes
        wanted = len(decode_offsets(self.offsets))
        return min(self.size_bytes, self.size_bytes * wanted // self.live_rows + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedColumns:
    """A fragment in which values of some columns stand elsewhere since.

    Rows that are live before and after are compared in these columns; both sides have the schema
    of the new version.

    Attributes:
        changed: Names of the columns.
    """

    before: FragmentRows
    after: FragmentRows
    changed: tuple[str, ...]

    @property
    def schema(self) -> bytes:
        """The columns of the rows."""
        return self.after.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFragments:
    """Rows that go and rows that come, of which equal ones cancel.

    Attributes:
        key: Columns whose values make a deleted and an inserted row one update: names, or
            `ROW_ID`; empty for none.
        prefix: As `RowPlaces` has it.
    """

    removed: tuple[FragmentRows, ...]
    added: tuple[FragmentRows, ...]
    schema: bytes
    key: tuple[str, ...] = ()
    prefix: str = ""


Payload = FragmentRows | ChangedColumns | ComparedFragments


def payload_of(task: ChangeTask) -> Payload:
    """Return what a task of this format carries.

    Raises:
        BugError: It is of another format.
    """
    if isinstance(task.payload, FragmentRows | ChangedColumns | ComparedFragments):
        return task.payload
    raise BugError(f"A task of the format {task.format} came to the reader of Lance tables.")


def file_number(fragment: int, *, is_new: bool) -> int:
    """Return the number of a fragment's rows of one side among all of a version."""
    return 2 * fragment + is_new


def encode_offsets(offsets: Rows) -> bytes:
    """Return what `decode_offsets` reads."""
    return bytes(pyroaring.BitMap(offsets.astype(np.uint32)).serialize())


def decode_offsets(encoded: bytes) -> Rows:
    """Return offsets, ascending."""
    return np.array(pyroaring.BitMap.deserialize(encoded), np.int64)


def schema_of(payload: Payload) -> pa.Schema:
    """Return the columns of the rows of a task."""
    return decode_schema(payload.schema)
