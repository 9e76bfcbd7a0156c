"""Row tracking: identifies rows that a commit carried over by ids instead of values. Pure.

Every row of a table with row tracking has a stable id and the version of the commit that last
changed it. A file has both in two hidden columns for rows that were moved there; for other rows
they follow from its `add`: `baseRowId` and the row's position, and `defaultRowCommitVersion`.

Protocol: PROTOCOL.md#row-tracking
"""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.actions import CommitInfo, FileAction
from tailerd.formats.delta.protocol.data_file import RowIds
from tailerd.formats.delta.protocol.snapshot import TableState

FEATURE = "rowTracking"
PRESERVED = "delta.rowTracking.preserved"
"""The tag of a commit whose writer preserved the ids of moved rows."""


_SENSIBLE = range(2**62)
"""No table has more rows or commits, and the sum of two such numbers fits 64 bits."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Names of the row-tracking columns in data files."""

    row_id: str
    commit_version: str

    def ids_of(self, action: FileAction) -> RowIds | None:
        """Return the row ids of a file; None if its action lacks the fields."""
        first, version = action.base_row_id, action.default_row_commit_version
        if first is None or version is None or first not in _SENSIBLE or version not in _SENSIBLE:
            return None
        return RowIds(
            id_column=self.row_id,
            version_column=self.commit_version,
            first_id=first,
            commit_version=version,
        )


def row_columns(
    before: TableState, after: TableState, info: CommitInfo | None
) -> RowColumns | None:
    """Return the columns with the row ids of a commit; None if ids do not show its changes.

    Args:
        before, after: The table's state before and after the commit.
    """
    if info is None or info.tags.get(PRESERVED) != "true":
        return None
    old, new = _columns(before), _columns(after)
    return new if old == new else None


def _columns(state: TableState) -> RowColumns | None:
    configuration = state.metadata.configuration
    is_tracked = (
        FEATURE in (state.protocol.writer_features or ())
        and properties.is_enabled(configuration, properties.ROW_TRACKING)
        and not properties.is_enabled(configuration, properties.ROW_TRACKING_SUSPENDED)
    )
    names = [
        configuration.get(each, "")
        for each in (properties.ROW_ID_COLUMN, properties.ROW_COMMIT_VERSION_COLUMN)
    ]
    return RowColumns(*names) if is_tracked and all(names) else None
