"""Filters of a query that exclude whole change tasks. Pure.

A filter excludes a task only if it is certainly false for every row; Spark filters the remaining
rows as usual.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from tailerd.changefeed.change_batch import CHANGE_COLUMNS, COMMIT_TIMESTAMP, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.column_filter import UNKNOWN, ColumnFilter, Comparison, may_pass
from tailerd.formats.detect import reader_of

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def may_match(task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
    """Return whether rows of a task can pass all filters."""
    others = []
    for each in filters:
        if each.column not in CHANGE_COLUMNS:
            others.append(each)
        elif not may_pass(_change_value(task, each.column), each):
            return False
    return not (others and reader_of(task).excludes(task, others))


def first_version(filters: Iterable[Filter]) -> int:
    """Return the first version whose commit can pass the filters on `_commit_version`."""
    first = 0
    for each in filters:
        match each:
            case GreaterThan(attribute=(name,), value=int(value)) if name == COMMIT_VERSION:
                first = max(first, value + 1)
            case (
                GreaterThanOrEqual(attribute=(name,), value=int(value))
                | EqualTo(attribute=(name,), value=int(value))
            ) if name == COMMIT_VERSION:
                first = max(first, value)
            case _:
                pass
    return first


def last_version(filters: Iterable[Filter]) -> int | None:
    """Return the last version whose commit can pass them; None if they set no upper bound."""
    lasts: list[int] = []
    for each in filters:
        match each:
            case LessThan(attribute=(name,), value=int(value)) if name == COMMIT_VERSION:
                lasts.append(value - 1)
            case (
                LessThanOrEqual(attribute=(name,), value=int(value))
                | EqualTo(attribute=(name,), value=int(value))
            ) if name == COMMIT_VERSION:
                lasts.append(value)
            case _:
                pass
    return min(lasts, default=None)


def column_filters(filters: Iterable[Filter]) -> list[ColumnFilter]:
    """Return the filters on one top-level column that can leave tasks out; others are left out."""
    return [found for each in filters if (found := _column_filter(each)) is not None]


def _column_filter(each: Filter) -> ColumnFilter | None:
    match each:
        case IsNull(attribute=(name,)):
            return ColumnFilter(column=name, comparison=Comparison.IS_NULL)
        case IsNotNull(attribute=(name,)):
            return ColumnFilter(column=name, comparison=Comparison.IS_NOT_NULL)
        case In(attribute=(name,), value=choices):
            return _compared(name, Comparison.IN, tuple(choices))
        case (
            EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value)
        ):
            # `EqualNullSafe` treats two nulls as equal.
            return None if value is None else _compared(name, Comparison.EQUAL, (value,))
        case GreaterThan(attribute=(name,), value=value):
            return _compared(name, Comparison.GREATER, (value,))
        case GreaterThanOrEqual(attribute=(name,), value=value):
            return _compared(name, Comparison.AT_LEAST, (value,))
        case LessThan(attribute=(name,), value=value):
            return _compared(name, Comparison.LESS, (value,))
        case LessThanOrEqual(attribute=(name,), value=value):
            return _compared(name, Comparison.AT_MOST, (value,))
        case _:
            return None


def _compared(name: str, comparison: Comparison, values: tuple[object, ...]) -> ColumnFilter | None:
    """Return a filter; commit times become numbers, None if that fails."""
    if name == COMMIT_TIMESTAMP:
        values = tuple(_microseconds(value) for value in values)
        if UNKNOWN in values:
            return None
    return ColumnFilter(column=name, comparison=comparison, values=values)


def _microseconds(value: object) -> object:
    if value is None:
        return None
    # Spark compares a time without a zone in the session's zone, which is not known here.
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return UNKNOWN


def _change_value(task: ChangeTask, name: str) -> object:
    """Return the value that all rows of a task have in a change column."""
    if name == COMMIT_VERSION:
        return int(task.version)
    if name == COMMIT_TIMESTAMP:
        return task.timestamp_us
    return UNKNOWN if task.change_type is None else task.change_type.value
