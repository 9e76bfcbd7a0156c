"""Counts the rows in the files of a commit, from their statistics.

Protocol: PROTOCOL.md#per-file-statistics
"""

from __future__ import annotations

from tailerd.formats.delta.protocol.actions import FileAction, num_records_of


class RowTally:
    """Counts physical rows, including deleted ones, so that a new deletion vector changes nothing.

    Attributes:
        added: Rows in the files of `add` actions; None if one lacks statistics.
    """

    def __init__(self) -> None:
        self.added: int | None = 0
        self._removed = 0
        self._of_marked: dict[int, int] = {}
        self._uncounted: list[int] = []

    @property
    def removed(self) -> int | None:
        """Rows in the files of `remove` actions; None if those of one are not known.

        Writers omit statistics from removes; for one that is paired with an `add` of the same path,
        the rows of the `add` are used.
        """
        paired = [self._of_marked.get(key) for key in self._uncounted]
        known = [rows for rows in paired if rows is not None]
        return None if len(known) < len(paired) else self._removed + sum(known)

    def take_add(self, action: FileAction, path_key: int) -> None:
        """Count an `add`."""
        rows = num_records_of(action)
        if rows is None or self.added is None:
            self.added = None
        else:
            self.added += rows
        if rows is not None and action.deletion_vector is not None:
            self._of_marked[path_key] = rows

    def take_remove(self, action: FileAction, path_key: int) -> None:
        """Count a `remove`."""
        rows = num_records_of(action)
        if rows is None:
            self._uncounted.append(path_key)
        else:
            self._removed += rows
