"""Plans tasks from two observed states: which files' rows are removed and added. Pure.

A rewritten partition still has its unchanged rows, so if a commit removes and adds files of one
partition, their rows are compared. Rows of different partitions differ in the values of their
paths, and need no comparison, unless a key pairs them.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Hashable
from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.errors import CorruptLogError
from tailerd.formats.kartothek.state import FileDifference, ObservedState, difference
from tailerd.formats.kartothek.table_schema import path_pieces, path_value, split_folder
from tailerd.formats.plain_schema import decode_schema
from tailerd.rows.groups import FilesToCompare

MAX_COMPARED_FILES = 50_000
"""Maximum files of a commit that are compared; a larger one is read without comparison."""


class Comparison(enum.StrEnum):
    """Which files of a commit are compared; the value is saved in offsets inside a commit."""

    NONE = "f"
    PARTITIONS = "r"
    """Those of rewritten partitions, so that equal rows cancel."""
    ALL = "k"
    """All files, because an update may move a row to another partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """The content of one task.

    Attributes:
        change: Delete or insert: all rows of one file. None: the result of comparing files.
        removed, added: Keys of the files.
        groups: How they are compared.
        schema: The columns of the rows.
    """

    change: ChangeType | None
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    groups: tuple[FilesToCompare, ...] = ()
    schema: bytes

    @property
    def files(self) -> tuple[str, ...]:
        """Keys of all files that it reads."""
        return (*self.removed, *self.added)


def snapshot_tasks(state: ObservedState) -> list[FileTask]:
    """Return a task for each file of a state, in order."""
    return [_insert(key, state.schema) for key in state.keys]


def commit_tasks(
    before: ObservedState | None, after: ObservedState, comparison: Comparison
) -> list[FileTask]:
    """Return the tasks of the difference of two states, deletes before inserts.

    Args:
        before: None before the first state.
    """
    files = difference(before, after)
    compared = _compare_files(before, after, files, comparison)
    compared_keys = {*compared.removed, *compared.added}
    old_schema = after.schema if before is None else before.schema
    if _is_comparable(old_schema, after.schema):
        old_schema = after.schema
    return [
        *(_delete(key, old_schema) for key in files.removed if key not in compared_keys),
        *([_comparing(compared, after.schema)] if compared_keys else []),
        *(_insert(key, after.schema) for key in files.added if key not in compared_keys),
    ]


def change_source(
    before: ObservedState | None, after: ObservedState, files: FileDifference
) -> ChangeSourceKind:
    """Return how the rows of a commit are found by default."""
    if _compare_files(before, after, files, Comparison.PARTITIONS).removed:
        return ChangeSourceKind.ROWS
    is_file_change = bool(files.removed or files.added)
    return ChangeSourceKind.FILES if is_file_change else ChangeSourceKind.NONE


def _compare_files(
    before: ObservedState | None,
    after: ObservedState,
    files: FileDifference,
    comparison: Comparison,
) -> FileDifference:
    """Return the files of a commit that are compared."""
    nothing = FileDifference([], [])
    is_requested = comparison is not Comparison.NONE
    if not is_requested or before is None or not _is_comparable(before.schema, after.schema):
        return nothing
    found = files
    if comparison is Comparison.PARTITIONS:
        removed, added = ({_partition(key, after.schema) for key in keys} for keys in _sides(files))
        both = removed & added
        found = FileDifference(
            *(
                [key for key in keys if _partition(key, after.schema) in both]
                for keys in _sides(files)
            )
        )
    if not found.removed or not found.added:
        return nothing
    is_few = len(found.removed) + len(found.added) <= MAX_COMPARED_FILES
    return found if is_few else nothing


def _sides(files: FileDifference) -> tuple[list[str], list[str]]:
    return files.removed, files.added


def _comparing(files: FileDifference, schema: bytes) -> FileTask:
    groups: dict[Hashable, tuple[list[int], list[int]]] = {}
    for side, keys in enumerate(_sides(files)):
        for number, key in enumerate(keys):
            groups.setdefault(_partition(key, schema), ([], []))[side].append(number)
    return FileTask(
        change=None,
        removed=tuple(files.removed),
        added=tuple(files.added),
        groups=tuple(
            FilesToCompare(removed=tuple(removed), added=tuple(added))
            for removed, added in groups.values()
        ),
        schema=schema,
    )


def _delete(key: str, schema: bytes) -> FileTask:
    return FileTask(change=ChangeType.DELETE, removed=(key,), schema=schema)


def _insert(key: str, schema: bytes) -> FileTask:
    return FileTask(change=ChangeType.INSERT, added=(key,), schema=schema)


def _partition(key: str, schema: bytes) -> Hashable:
    return _parse_folder(split_folder(key), schema)


@functools.lru_cache(maxsize=4096)
def _parse_folder(folder: str, schema: bytes) -> Hashable:
    """Return the values in a path, parsed: one value may have several texts."""
    columns = decode_schema(schema)
    return tuple(
        (name, _value(text, columns.field(name)) if name in columns.names else text)
        for name, text in path_pieces(folder)
    )


def _value(text: str, column: pa.Field) -> Hashable:
    try:
        value: Hashable = path_value(text, column, text).as_py()
    except (CorruptLogError, OverflowError, ValueError):
        # Reading raises the error, if any; Python's years end at 9999.
        return text
    is_nan = value != value
    return text if is_nan else value


def _is_comparable(old: bytes, new: bytes) -> bool:
    """Return whether old rows can be read with the new columns without loss."""
    if old == new:
        return True
    columns, later = decode_schema(old), decode_schema(new)
    # A column with only nulls gets a type with its first value.
    return all(
        field.name in later.names
        and (pa.types.is_null(field.type) or later.field(field.name).type == field.type)
        for field in columns
    )
