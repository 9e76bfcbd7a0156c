"""Converts conditions of deletes to TileDB's query language."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailerd.formats.tiledb.columns import ArrayShape
from tailerd.formats.tiledb.protocol.conditions import (
    Combination,
    Comparison,
    Condition,
    Operator,
    comparisons,
    negate,
)

_SIGNS = {
    Operator.LESS: "<",
    Operator.AT_MOST: "<=",
    Operator.GREATER: ">",
    Operator.AT_LEAST: ">=",
    Operator.EQUAL: "==",
    Operator.NOT_EQUAL: "!=",
}


def finds_deleted(conditions: list[Condition], array: Any, shape: ArrayShape) -> str | None:
    """Return a condition for exactly the cells that deletes removed; None if there is none.

    Cells with a null or NaN are deleted although the negation is not true for them, so a condition
    on a column that may have them cannot be used; nor can one with an operator that the query
    language lacks.
    """
    found = []
    for condition in conditions:
        for each in comparisons(condition):
            column = shape.column(each.field)
            if column is None or not column.is_exact:
                return None
        text = expression(negate(condition), array)
        if text is None:
            return None
        found.append(f"({text})")
    return " or ".join(found)


def is_malformed(condition: Condition, shape: ArrayShape, array: Any) -> bool:
    """Return whether a delete's value does not have its column's size, which TileDB rejects."""
    for each in comparisons(condition):
        column = shape.column(each.field)
        if column is None or each.operator in (Operator.IN, Operator.NOT_IN):
            continue
        part = (
            array.schema.domain.dim(each.field)
            if column.is_dimension
            else array.schema.attr(each.field)
        )
        if not part.isvar and len(each.value) != np.dtype(part.dtype).itemsize:
            return True
    return False


def expression(condition: Condition, array: Any) -> str | None:
    """Return a condition as text; None if it cannot be expressed."""
    if isinstance(condition, Comparison):
        return _comparison(condition, array)
    if condition.combination is Combination.NOT:
        return expression(negate(condition.parts[0]), array)
    parts = [expression(part, array) for part in condition.parts]
    if None in parts:
        return None
    word = " and " if condition.combination is Combination.AND else " or "
    return word.join(f"({part})" for part in parts)


def _comparison(condition: Comparison, array: Any) -> str | None:
    schema, name = array.schema, condition.field
    is_dimension = schema.domain.has_dim(name)
    if not is_dimension and not schema.has_attr(name):
        return None
    part = schema.domain.dim(name) if is_dimension else schema.attr(name)
    dtype = np.dtype(part.dtype)
    if condition.operator not in _SIGNS or not condition.value:
        return None
    value = _value(condition.value, dtype)
    if value is None:
        return None
    kind = "dim" if is_dimension else "attr"
    return f"{kind}({name!r}) {_SIGNS[condition.operator]} {value!r}"


def _value(content: bytes, dtype: np.dtype[Any]) -> object:
    """Return a value; None if it has no text form."""
    if dtype.kind in "SU":
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        return text if text.isprintable() else None
    if dtype.kind not in "iuMmbf" or len(content) != dtype.itemsize:
        return None
    if dtype.kind == "f":
        number = float(np.frombuffer(content, f"<f{dtype.itemsize}")[0])
        return number if np.isfinite(number) else None
    if dtype.kind == "b":
        return content[0]
    return int(np.frombuffer(content, f"<{'u' if dtype.kind == 'u' else 'i'}{dtype.itemsize}")[0])
