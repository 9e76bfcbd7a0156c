"""Conditions on one column, used to skip tasks of which no row can pass (task pruning). Pure.

Rows are never filtered with these. They only show, from a value that all rows of a task are known
to have in a column, that none of them can pass.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final


class Comparison(enum.StrEnum):
    """How a column's value is compared."""

    EQUAL = "="
    GREATER = ">"
    AT_LEAST = ">="
    LESS = "<"
    AT_MOST = "<="
    IN = "in"
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFilter:
    """A condition on a top-level column.

    Attributes:
        column: Its logical name.
        comparison: How the column's value is compared.
        values: Right-hand side: one value, those of `IN`, none for `IS_NULL` and `IS_NOT_NULL`.
    """

    column: str
    comparison: Comparison
    values: tuple[object, ...] = ()


class Unknown(enum.Enum):
    """Marks a value that is not known."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN

_COMPARED: dict[Comparison, Callable[..., bool]] = {
    Comparison.EQUAL: lambda a, b: a == b,
    Comparison.IN: lambda a, b: a == b,
    Comparison.GREATER: lambda a, b: a > b,
    Comparison.AT_LEAST: lambda a, b: a >= b,
    Comparison.LESS: lambda a, b: a < b,
    Comparison.AT_MOST: lambda a, b: a <= b,
}


def may_pass(value: object, condition: ColumnFilter) -> bool:
    """Return whether a row with `value` in the filter's column can pass.

    Args:
        value: The value; None for null; `UNKNOWN` if it may be any value.
    """
    match condition.comparison:
        case Comparison.IS_NULL:
            return value is None or value is UNKNOWN
        case Comparison.IS_NOT_NULL:
            return value is not None
        case comparison:
            compare = _COMPARED[comparison]
            return any(_holds(value, operand, compare) for operand in condition.values)


def may_pass_within(
    lower: object, upper: object, nulls: int | None, rows: int | None, condition: ColumnFilter
) -> bool:
    """Return whether one of some rows can pass, by the bounds of their values.

    Args:
        lower, upper: No value is below or above; None: not known.
        nulls, rows: How many of the rows have null; None: not known.
    """
    match condition.comparison:
        case Comparison.IS_NULL:
            return nulls != 0
        case Comparison.IS_NOT_NULL:
            return nulls is None or nulls != rows
        case how:
            if nulls is not None and nulls == rows:
                return False
            # What the least and the greatest value must meet, so that any can.
            below = _COMPARED[how if how is Comparison.LESS else Comparison.AT_MOST]
            above = _COMPARED[how if how is Comparison.GREATER else Comparison.AT_LEAST]
            has_lower = lower is not None and how not in (Comparison.GREATER, Comparison.AT_LEAST)
            has_upper = upper is not None and how not in (Comparison.LESS, Comparison.AT_MOST)
            return any(
                (not has_lower or _holds(_exact(lower), _exact(operand), below))
                and (not has_upper or _holds(_exact(upper), _exact(operand), above))
                for operand in condition.values
            )


def _exact(value: object) -> object:
    """Return times as microseconds, which are compared exactly."""
    if not isinstance(value, datetime.datetime):
        return value
    start = datetime.datetime(1970, 1, 1, tzinfo=value.tzinfo and datetime.UTC)
    return (value - start) // datetime.timedelta(microseconds=1)


def _holds(value: object, operand: object, compare: Callable[..., bool]) -> bool:
    """Compare values of one type that all engines order the same; return True for any other."""
    if value is None or operand is None:
        return False
    if isinstance(value, Decimal | int) and isinstance(operand, Decimal | int):
        is_like = isinstance(value, bool) == isinstance(operand, bool)
    else:
        is_like = type(value) is type(operand) and isinstance(value, str | datetime.date)
    if not is_like or isinstance(value, datetime.datetime):
        return True
    if isinstance(value, str):
        # Spark orders the bytes of UTF-8.
        return compare(value.encode(), str(operand).encode())
    return compare(value, operand)
