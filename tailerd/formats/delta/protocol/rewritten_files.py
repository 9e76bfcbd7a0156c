"""The payload of an exact commit's task: the files whose rows are compared, in groups. Pure.

A commit that removes and adds rows has candidates on both sides. Only a comparison shows which of
them changed, so all of them are one task.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.errors import BugError
from tailerd.formats.delta.protocol.actions import UNREADABLE
from tailerd.formats.delta.protocol.data_file import DataFile, TableSchema, data_file
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.schema import (
    UTC_TIMESTAMP,
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    arrow_field,
    arrow_schema,
    comparable_text,
    parse_schema,
)
from tailerd.rows.groups import (
    ColumnBounds,
    FileBounds,
    FilesToCompare,
    group_files,
    likely_rewrites,
    widened_bounds,
)
from tailerd.rows.schema_cast import MatchColumns, schema_cast

MAX_EXACT_FILES = 50_000
"""Maximum files of a commit that are compared; a larger commit is read without comparison."""
MAX_BOUNDED_FILES = 10_000
"""With more files, bounds are not used: they would need more memory than they save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFiles:
    """The payload of an exact commit's only task.

    Attributes:
        schema: Of the rows, including deleted ones: the schema after the commit.
        removed, added: Files whose rows, as selected by their filters, were removed and added.
        groups: Every file is in one.
        removed_tasks, added_tasks: The position of the task that each file would have alone.
        key: Key columns by which a delete and an insert are paired to an update; empty: no pairing.
        prefix: Of the rows' positions (`RowPositions`).
        are_updates: Whether deleted and inserted rows are the images of updates.
    """

    schema: TableSchema
    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]
    groups: tuple[FilesToCompare, ...]
    removed_tasks: tuple[int, ...]
    added_tasks: tuple[int, ...]
    key: tuple[str, ...] = ()
    prefix: str = ""
    are_updates: bool = False


def rewritten_files(task: ChangeTask) -> RewrittenFiles:
    """Return the payload of an exact commit's task."""
    if not isinstance(task.payload, RewrittenFiles):
        raise BugError(f"A task of {task.change_source.value} was read as one of an exact commit.")
    return task.payload


def select_schema(task: ChangeTask) -> TableSchema:
    """Return the schema of the rows of a task of either kind."""
    if isinstance(task.payload, RewrittenFiles):
        return task.payload.schema
    return data_file(task).schema


def with_files(task: ChangeTask, change: Callable[[DataFile], DataFile]) -> ChangeTask:
    """Return a task of either kind with its files changed; the task itself if none is."""
    if not isinstance(task.payload, RewrittenFiles):
        before = data_file(task)
        after = change(before)
        return task if after is before else replace(task, payload=after)
    payload = task.payload
    removed, added = tuple(map(change, payload.removed)), tuple(map(change, payload.added))
    pairs = zip((*removed, *added), (*payload.removed, *payload.added), strict=True)
    if all(new is old for new, old in pairs):
        return task
    return replace(task, payload=replace(payload, removed=removed, added=added))


def list_files(task: ChangeTask) -> Iterator[DataFile]:
    """Yield the files of a task of either kind, in the order in which they are read first."""
    match task.payload:
        case RewrittenFiles(removed=removed, added=added, groups=groups):
            for group in groups:
                for one, other in group.aligned:
                    yield from (removed[one], added[other])
                paired = {number for pair in group.aligned for number in pair[:1]}
                yield from (removed[number] for number in group.removed if number not in paired)
                paired = {number for pair in group.aligned for number in pair[1:]}
                yield from (added[number] for number in group.added if number not in paired)
        case _:
            yield data_file(task)


def exact_task(
    tasks: Sequence[ChangeTask],
    bounds: Sequence[FileBounds],
    *,
    before: TableSchema,
    after: TableSchema,
    key: Sequence[str],
) -> ChangeTask:
    """Return the task that compares the rows of one commit's tasks.

    Args:
        tasks: One for each file that removes or adds rows; of one kind or both.
        bounds: Known bounds of their rows, parallel; empty if not known.
        before, after: Schemas of the table before and after the commit.
    """
    sides: dict[bool, list[int]] = {True: [], False: []}
    for number, task in enumerate(tasks):
        sides[task.change_type is ChangeType.DELETE].append(number)
    # A removed file is read with the new version's schema, except for its partition columns.
    seen = replace(after, partition_columns=before.partition_columns)
    removed = tuple(replace(data_file(tasks[n]), schema=seen) for n in sides[True])
    added = tuple(data_file(tasks[number]) for number in sides[False])
    payload = RewrittenFiles(
        schema=after,
        removed=removed,
        added=added,
        groups=_groups(
            [bounds[number] for number in sides[True]] if bounds else (),
            [bounds[number] for number in sides[False]] if bounds else (),
            len(removed),
            len(added),
        ),
        removed_tasks=tuple(tasks[number].position for number in sides[True]),
        added_tasks=tuple(tasks[number].position for number in sides[False]),
        key=tuple(key),
    )
    records = [task.num_records for task in tasks]
    known = [count for count in records if count is not None]
    return replace(
        tasks[0],
        position=0,
        change_type=None,
        size_bytes=sum(task.size_bytes for task in tasks),
        payload=payload,
        num_records=sum(known) if len(known) == len(records) else None,
    )


def _groups(
    removed: Sequence[FileBounds], added: Sequence[FileBounds], num_removed: int, num_added: int
) -> tuple[FilesToCompare, ...]:
    if not removed or not added:
        aligned = ((0, 0),) if num_removed == num_added == 1 else ()
        return (
            FilesToCompare(
                removed=tuple(range(num_removed)), added=tuple(range(num_added)), aligned=aligned
            ),
        )
    return tuple(
        FilesToCompare(
            removed=group.removed,
            added=group.added,
            aligned=tuple(likely_rewrites(group, removed, added)),
        )
        for group in group_files(removed, added)
    )


def file_bounds(
    file: DataFile, stats: str | bytes | None, *, with_statistics: bool
) -> FileBounds | None:
    """Return the known bounds of a file's rows; None if its partition values are not known.

    Args:
        file: Of a commit that changes neither schema nor partition columns.
        stats: The statistics of its action.
        with_statistics: Whether to use them.
    """
    values = dict(file.partition_values)
    partition: list[Hashable] = []
    for name, physical, kind in _partition_fields(file.schema):
        if physical not in values:
            return None
        try:
            partition.append(parse_partition_value(values[physical], kind, name).as_py())
        except OverflowError:
            # Python's years end at 9999, Delta's do not.
            return None
    columns = parse_bounds(stats, file.schema) if with_statistics else {}
    return FileBounds(partition=tuple(partition), columns=columns)


@functools.lru_cache(maxsize=64)
def _partition_fields(schema: TableSchema) -> tuple[tuple[str, str, pa.DataType], ...]:
    """Return logical name, physical name and type of partition columns that distinguish files.

    Not timestamps, whose zone may be added later, and not CHAR columns, which are padded when read.
    """
    columns = parse_schema(schema.text)
    found = (columns.find_field(name) for name in schema.partition_columns)
    return tuple(
        (field.name, field.physical_name(schema.column_mapping), arrow_field(field).type)
        for field in found
        if field is not None and not field.char_length and arrow_field(field).type != UTC_TIMESTAMP
    )


def can_compare(before: TableSchema, after: TableSchema) -> bool:
    """Return whether rows of the old schema can be read and compared in the new one.

    This requires that each column still exists and has its type or a wider one. If a table is
    replaced by one with other columns, its deleted rows would have only nulls.
    """
    if before == after:
        return True
    if after.column_mapping == "id" != before.column_mapping:
        # Earlier files have no ids by which to find columns.
        return False
    old, new = (parse_schema(comparable_text(each.text)) for each in (before, after))
    if not old.fields or not new.fields:
        return False
    if not _is_unchanged(old, new, before.column_mapping, after.column_mapping):
        return False
    return schema_cast(arrow_schema(old), arrow_schema(new), MatchColumns.BY_NAME) is not None


def can_compare_net(before: TableSchema, after: TableSchema) -> bool:
    """Return whether rows of the old schema can be read and compared in the columns of the new one.

    As `can_compare`, but dropped columns are left out, and renamed ones are matched.
    """
    if before == after:
        return True
    if after.column_mapping == "id" != before.column_mapping:
        return False
    old, new = (arrow_schema(parse_schema(comparable_text(each.text))) for each in (before, after))
    is_mapped = after.column_mapping != "none"
    match = MatchColumns.BY_FIELD_ID if is_mapped else MatchColumns.BY_NAME
    return len(new) > 0 and schema_cast(old, new, match) is not None


def _is_unchanged(old: DataType, new: DataType, old_mapping: str, new_mapping: str) -> bool:
    """Return whether every field of the old type, at any depth, is unchanged in the new one."""
    match old, new:
        case StructType(fields), StructType():
            return all(
                (found := new.find_field(field.name)) is not None
                and _is_same_column(field, found, old_mapping, new_mapping)
                and _is_unchanged(field.type, found.type, old_mapping, new_mapping)
                for field in fields
            )
        case ArrayType(one, _), ArrayType(other, _):
            return _is_unchanged(one, other, old_mapping, new_mapping)
        case MapType(key, value, _), MapType(new_key, new_value, _):
            return _is_unchanged(key, new_key, old_mapping, new_mapping) and _is_unchanged(
                value, new_value, old_mapping, new_mapping
            )
        case PrimitiveType(), PrimitiveType():
            return True
    return False


def _is_same_column(old: StructField, new: StructField, old_mapping: str, new_mapping: str) -> bool:
    is_padded_alike = old.char_lengths == new.char_lengths
    return is_padded_alike and old.physical_name(old_mapping) == new.physical_name(new_mapping)


# Protocol: PROTOCOL.md#per-file-statistics

MAX_COLUMNS = 8
"""Columns whose bounds are used: only the first ones have statistics, and they cluster files."""


class _Bounds(Struct, rename="camel", gc=False):
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_count: dict[str, Any] = {}


_FIRST_GREGORIAN_DATE = dt.date(1582, 10, 15)
_YEAR_1900 = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
"""Earlier bounds may be of the legacy calendar, if a writer took them from the file's footer."""

_TEXT = msgspec.json.Decoder(str | None)
_BOUNDS = msgspec.json.Decoder(_Bounds)


def parse_bounds(
    stats: str | bytes | None, schema: TableSchema, columns: Collection[str] | None = None
) -> dict[str, ColumnBounds]:
    """Return the bounds of a file's columns by physical name; empty if they are not known.

    Only for types that JSON represents exactly and whose order is certain: integers, texts, dates
    and times. Floats have NaN outside of all bounds; decimals are floats in JSON.

    Args:
        stats: The `stats` of an action as in the log: a JSON text of a JSON object.
        columns: Logical names; None for the first `MAX_COLUMNS`.
    """
    if not stats:
        return {}
    try:
        text = _TEXT.decode(stats)
        found = _BOUNDS.decode(text) if text else _Bounds()
    except UNREADABLE:
        # Statistics are optional: unreadable ones count as absent.
        return {}
    bounds = {}
    known = _list_bounded_columns(schema)
    chosen = known[:MAX_COLUMNS] if columns is None else [e for e in known if e[0] in columns]
    for _, name, kind in chosen:
        nulls = found.null_count.get(name)
        lower, upper = widened_bounds(
            _value(found.min_values.get(name), kind), _value(found.max_values.get(name), kind)
        )
        bounds[name] = ColumnBounds(
            lower=lower, upper=upper, null_count=nulls if type(nulls) is int else None
        )
    return bounds


@functools.lru_cache(maxsize=64)
def _list_bounded_columns(schema: TableSchema) -> tuple[tuple[str, str, str], ...]:
    """Return both names and the type of columns with bounds; cached for many files."""
    return tuple(
        (field.name, field.physical_name(schema.column_mapping), field.type.name)
        for field in parse_schema(schema.text).fields
        if isinstance(field.type, PrimitiveType)
        and field.type.name in _PARSED
        and not field.char_length
        and field.name not in schema.partition_columns
    )


def _value(value: Any, kind: str) -> Any:
    """Return a bound; None if it is not known."""
    try:
        return _PARSED[kind](value)
    except (ValueError, TypeError, OverflowError):
        return None


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _date(value: Any) -> dt.date | None:
    date = dt.date.fromisoformat(value)
    return None if date < _FIRST_GREGORIAN_DATE else date


def _instant(value: Any) -> dt.datetime | None:
    time = dt.datetime.fromisoformat(value)
    time = time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return None if time < _YEAR_1900 else time


def _local_time(value: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(value).replace(tzinfo=None)


_PARSED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("long", "bigint", "integer", "int", "short", "byte"), _integer),
    "string": _string,
    "date": _date,
    "timestamp": _instant,
    "timestamp_ntz": _local_time,
}
