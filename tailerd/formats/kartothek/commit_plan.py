"""From two observed states to tasks: which files' rows go, and which come. Pure.

A partition that is rewritten gives its unchanged rows back, so where a commit takes files from one
folder and brings others into it, their rows are compared. Rows of different folders differ in what
their paths say, and need not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeType
from tailerd.formats.kartothek.state import FileDifference, ObservedState, difference
from tailerd.formats.kartothek.table_schema import decode_schema, folder_of, path_pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """What one task reads.

    Attributes:
        change: Delete or insert.
        keys: Files whose rows come.
        others: Files that they are compared with; empty: all rows come.
        schema: The columns of the rows.
    """

    change: ChangeType
    keys: tuple[str, ...]
    others: tuple[str, ...] = ()
    schema: bytes

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Every file that is read for it."""
        return (*self.keys, *self.others)


def snapshot_tasks(state: ObservedState) -> list[FileTask]:
    """Return a task for each file of a state, in order."""
    return [
        FileTask(change=ChangeType.INSERT, keys=(key,), schema=state.schema) for key in state.keys
    ]


def commit_tasks(
    before: ObservedState | None, after: ObservedState, *, is_exact: bool = True
) -> list[FileTask]:
    """Return the tasks that lead from one state to another, deletes before inserts.

    Args:
        before: None where there was nothing.
        is_exact: Whether equal rows of a rewritten partition cancel.
    """
    files = difference(before, after)
    old_schema = after.schema if before is None else before.schema
    is_comparable = _is_comparable(old_schema, after.schema)
    schemas = {
        ChangeType.DELETE: after.schema if is_comparable else old_schema,
        ChangeType.INSERT: after.schema,
    }
    rewritten = _rewritten(files) if is_exact and is_comparable else {}
    tasks = []
    for change, keys in (
        (ChangeType.DELETE, files.removed),
        (ChangeType.INSERT, files.added),
    ):
        tasks += _tasks(change, keys, rewritten, schemas[change])
    return tasks


Folders = dict[tuple[tuple[str, str], ...], dict[ChangeType, list[str]]]
"""What paths say -> files that go and that come."""


def _rewritten(files: FileDifference) -> Folders:
    """Return the folders that a commit takes files from and brings others into."""
    folders: Folders = {}
    for change, keys in ((ChangeType.DELETE, files.removed), (ChangeType.INSERT, files.added)):
        for key in keys:
            sides = folders.setdefault(_pieces(key), {})
            sides.setdefault(change, []).append(key)
    return {pieces: sides for pieces, sides in folders.items() if len(sides) == 2}


def _tasks(
    change: ChangeType, keys: Sequence[str], rewritten: Folders, schema: bytes
) -> list[FileTask]:
    other = ChangeType.INSERT if change is ChangeType.DELETE else ChangeType.DELETE
    found, done = [], set()
    for key in keys:
        pieces = _pieces(key)
        sides = rewritten.get(pieces)
        if sides is None:
            found.append(FileTask(change=change, keys=(key,), schema=schema))
        elif pieces not in done:
            done.add(pieces)
            found.append(
                FileTask(
                    change=change,
                    keys=tuple(sides[change]),
                    others=tuple(sides[other]),
                    schema=schema,
                )
            )
    return found


def _pieces(key: str) -> tuple[tuple[str, str], ...]:
    return path_pieces(folder_of(key))


def _is_comparable(old: bytes, new: bytes) -> bool:
    """Tell whether old rows can be read with the new columns, and lose nothing."""
    if old == new:
        return True
    columns, later = decode_schema(old), decode_schema(new)
    # A column that had only nulls is typed once a value comes.
    return all(
        field.name in later.names
        and (pa.types.is_null(field.type) or later.field(field.name).type == field.type)
        for field in columns
    )
