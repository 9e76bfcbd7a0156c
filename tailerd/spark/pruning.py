"""Filters of a query that exclude whole change tasks. Pure.

Only what is certainly false for every row of a task excludes it; Spark filters the rows afterwards
as if nothing had been left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from decimal import Decimal

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

from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeTask
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.schema import arrow_field, parse_schema

Value = bool | int | str | Decimal | datetime.date
_Unknown = type("_Unknown", (), {})
_UNKNOWN = _Unknown()
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def may_match(task: ChangeTask, filters: Iterable[Filter]) -> bool:
    """Tell whether rows of a task can pass all filters."""
    return all(_may_pass(task, each) for each in filters)


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
    """Return the last version whose commit can pass them; None where they do not say."""
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


def _in_microseconds(each: Filter) -> Filter | None:
    """Return a filter on `_commit_timestamp` with numbers for times; None where that is no use."""
    match each:
        case In(attribute=attribute, value=choices):
            numbers = tuple(_microseconds(choice) for choice in choices)
            return None if _UNKNOWN in numbers else In(attribute, numbers)
        case (
            EqualTo(attribute=attribute, value=value)
            | EqualNullSafe(attribute=attribute, value=value)
            | GreaterThan(attribute=attribute, value=value)
            | GreaterThanOrEqual(attribute=attribute, value=value)
            | LessThan(attribute=attribute, value=value)
            | LessThanOrEqual(attribute=attribute, value=value)
        ):
            number = _microseconds(value)
            return None if number is _UNKNOWN else type(each)(attribute, number)
        case _:
            return each


def _microseconds(value: object) -> object:
    if value is None:
        return None
    # Spark compares a time without a zone in the session's zone, which is not known here.
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return _UNKNOWN


def _may_pass(task: ChangeTask, each: Filter) -> bool:
    if getattr(each, "attribute", None) == (COMMIT_TIMESTAMP,):
        in_numbers = _in_microseconds(each)
        if in_numbers is None:
            return True
        each = in_numbers
    match each:
        case IsNull(attribute=(name,)):
            value = _value(task, name)
            return value is None or value is _UNKNOWN
        case IsNotNull(attribute=(name,)):
            return _value(task, name) is not None
        case (
            EqualTo(attribute=(name,), value=wanted)
            | EqualNullSafe(attribute=(name,), value=wanted)
        ):
            return wanted is None or _holds(_value(task, name), wanted, lambda a, b: a == b)
        case GreaterThan(attribute=(name,), value=wanted):
            return _holds(_value(task, name), wanted, lambda a, b: a > b)
        case GreaterThanOrEqual(attribute=(name,), value=wanted):
            return _holds(_value(task, name), wanted, lambda a, b: a >= b)
        case LessThan(attribute=(name,), value=wanted):
            return _holds(_value(task, name), wanted, lambda a, b: a < b)
        case LessThanOrEqual(attribute=(name,), value=wanted):
            return _holds(_value(task, name), wanted, lambda a, b: a <= b)
        case In(attribute=(name,), value=choices):
            value = _value(task, name)
            return any(_holds(value, wanted, lambda a, b: a == b) for wanted in choices)
        case _:
            return True


def _holds(value: object, wanted: object, compare: Callable[..., bool]) -> bool:
    """Compare where both are of one kind that orders as Spark does; else anything may be."""
    if value is None or wanted is None:
        return False
    if isinstance(value, Decimal | int) and isinstance(wanted, Decimal | int):
        is_like = isinstance(value, bool) == isinstance(wanted, bool)
    else:
        is_like = type(value) is type(wanted) and isinstance(value, str | datetime.date)
    if not is_like or isinstance(value, datetime.datetime):
        return True
    if isinstance(value, str):
        # Spark orders the bytes of UTF-8.
        return compare(value.encode(), str(wanted).encode())
    return compare(value, wanted)


def _value(task: ChangeTask, name: str) -> object:
    """Return the value that all rows of a task have in a column, `_UNKNOWN` if that is not said."""
    if name == COMMIT_VERSION:
        return int(task.version)
    if name == COMMIT_TIMESTAMP:
        return task.timestamp_us
    if name == CHANGE_TYPE:
        return _UNKNOWN if task.change_type is None else task.change_type.value
    field = parse_schema(task.schema.text).named(name)
    if field is None or name not in task.schema.partition_columns or field.char_length:
        return _UNKNOWN
    values = dict(task.partition_values)
    physical = field.physical_name(task.schema.column_mapping)
    if physical not in values:
        # An old writer may leave a removed file's values out.
        return _UNKNOWN
    try:
        return parse_partition_value(values[physical], arrow_field(field).type, name).as_py()
    except OverflowError:
        # Python's years are 1 to 9999, Delta's are not.
        return _UNKNOWN
