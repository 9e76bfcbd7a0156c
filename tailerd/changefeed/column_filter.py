"""Conditions on one column that say which rows somebody wants: to leave out what none passes. Pure.

Rows are never filtered with these. They only tell, from a value that all rows of a task are known
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
        values: With what: one value, those of `IN`, none for `IS_NULL` and `IS_NOT_NULL`.
    """

    column: str
    comparison: Comparison
    values: tuple[object, ...] = ()


class Unknown(enum.Enum):
    """Stands for a value that is not known."""

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
        value: The value, None for null, `UNKNOWN` where it may be anything.
    """
    match condition.comparison:
        case Comparison.IS_NULL:
            return value is None or value is UNKNOWN
        case Comparison.IS_NOT_NULL:
            return value is not None
        case comparison:
            compare = _COMPARED[comparison]
            return any(_holds(value, wanted, compare) for wanted in condition.values)


def _holds(value: object, wanted: object, compare: Callable[..., bool]) -> bool:
    """Compare where both are of one kind that orders the same everywhere; else anything may be."""
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
