"""Compares removed and added rows of one commit: equal ones cancel, others pair to updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tailerd.changefeed.limits import BatchLimit
from tailerd.formats.lance.fragment_rows import RowReading, read_rows
from tailerd.formats.lance.payload import ComparedFragments, FragmentRows, file_number
from tailerd.formats.lance.protocol.columns import ROW_ID
from tailerd.formats.plain_schema import decode_schema, select_columns
from tailerd.reading.compared_files import Columns, ComparedInputs
from tailerd.rows.difference import Side
from tailerd.rows.exact import PositionedRows
from tailerd.rows.groups import FileBounds, FilesToCompare
from tailerd.rows.positions import Positions
from tailerd.storage.stores import Stores


class ComparedLance:
    """The `ComparedRows` of a commit."""

    def __init__(self, payload: ComparedFragments) -> None:
        self._payload = payload
        self._schema = decode_schema(payload.schema)

    @property
    def groups(self) -> Sequence[FilesToCompare]:
        """Return one group: any row may have moved to any fragment."""
        removed, added = (range(len(self.fragments(side))) for side in Side)
        return [FilesToCompare(removed=tuple(removed), added=tuple(added))]

    @property
    def key(self) -> Sequence[str]:
        """Key columns by which a delete and an insert are paired to an update; empty for none."""
        return self._payload.key

    @property
    def row_ids(self) -> Sequence[str]:
        """Return none: an id alone does not show that a row did not change."""
        return ()

    @property
    def prefix(self) -> str:
        """Distinguishes the places of its rows from others of the version."""
        return self._payload.prefix

    def fragments(self, side: Side) -> Sequence[FragmentRows]:
        """Return the fragments of a side."""
        return self._payload.removed if side is Side.REMOVED else self._payload.added

    def numbers(self, side: Side) -> Sequence[int]:
        """Return the numbers of a side's fragments, as in `RowPlaces`."""
        is_new = side is Side.ADDED
        return [file_number(each.fragment, is_new=is_new) for each in self.fragments(side)]

    def schema(self, columns: Columns = None) -> pa.Schema:
        """Return the schema of the rows of both sides; with row ids if they are requested."""
        found = select_columns(self._schema, columns)
        if columns is not None and ROW_ID in columns:
            found = found.append(pa.field(ROW_ID, pa.uint64()))
        return found

    def selects_nothing(self, side: Side, number: int) -> bool:
        """Return false: every row is selected."""
        return False


class ComparedLanceRows(ComparedInputs):
    """Reads the rows of a commit, fragment by fragment."""

    def __init__(self, payload: ComparedFragments, limit: BatchLimit, stores: Stores) -> None:
        super().__init__(limit)
        self._commit = ComparedLance(payload)
        self._reading = RowReading(stores, limit)

    @property
    def commit(self) -> ComparedLance:
        """The description of the rows."""
        return self._commit

    def footer_bounds(self, side: Side, number: int) -> FileBounds:
        """Return no bounds: the files have none."""
        return FileBounds()

    def read_input(
        self, side: Side, number: int, wanted: Positions | None, columns: Columns
    ) -> Iterator[PositionedRows]:
        """Yield rows of a fragment with their offsets in it."""
        fragment = self._commit.fragments(side)[number]
        offsets = None if wanted is None else wanted.to_numpy()
        yield from read_rows(fragment, self._reading, columns, offsets)
