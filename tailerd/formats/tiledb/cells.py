"""Cells of an opened array as Arrow: whole, in boxes, at coordinates, or where a condition holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from tailerd.formats.tiledb.columns import ArrayShape, cells_to_arrow

MOST_POINTS = 50_000
"""Coordinates that are asked for one by one; of more, the box around them is read."""
_WIDE = 4
"""How many times as many combinations of coordinates may be asked for as there are cells."""

Range = tuple[Any, Any]
Box = tuple[Range, ...]
"""First and last coordinate of each dimension, both inclusive, as the library takes them."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows at coordinates, and the coordinates as the library has them."""

    rows: pa.RecordBatch
    coordinates: tuple[Any, ...]


def box_of(array: Any) -> Box | None:
    """Return the smallest box with all cells; None of an array without any."""
    found = array.nonempty_domain()
    if found is None:
        return None
    schema = array.schema
    if schema.domain.ndim == 1 and not isinstance(found[0], tuple):
        found = (found,)
    return tuple((_bound(low), _bound(high)) for low, high in found)


def _bound(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value[()] if value.ndim == 0 else value.reshape(-1)[0]
    return value


def read_box(
    array: Any, shape: ArrayShape, box: Box | None, *, condition: str | None = None
) -> Cells:
    """Return the cells in a box, in the order that is fastest to read.

    Args:
        box: None for all of them.
        condition: Of the library's language; only cells of a sparse array for which it holds.
    """
    indices = tuple(slice(low, high) for low, high in box) if box is not None else (slice(None),)
    query = array.query(coords=True, order="U" if shape.is_sparse else "C", cond=condition)
    return _cells(query.multi_index[indices], shape, array)


def read_coordinates(array: Any, shape: ArrayShape, box: Box | None) -> Cells:
    """Return the coordinates alone of the cells of a sparse array, in a box."""
    indices = tuple(slice(low, high) for low, high in box) if box is not None else (slice(None),)
    names = [array.schema.domain.dim(n).name for n in range(array.schema.domain.ndim)]
    query = array.query(attrs=[], dims=names, order="U")
    return _cells(query.multi_index[indices], shape, array)


def read_near(
    array: Any, shape: ArrayShape, coordinates: Sequence[Any], *, condition: str | None = None
) -> Cells | None:
    """Return at least the cells of a sparse array at coordinates, maybe others between them.

    Args:
        coordinates: An array of each dimension, of equal length.

    Returns:
        None where there are no coordinates.
    """
    count = len(coordinates[0])
    if not count:
        return None
    query = array.query(coords=True, order="U", cond=condition)
    return _cells(query.multi_index[_selection(coordinates, count)], shape, array)


def _selection(coordinates: Sequence[Any], count: int) -> tuple[Any, ...]:
    points = [_distinct(each) for each in coordinates]
    sizes = [len(each) for each in points]
    if max(sizes) <= MOST_POINTS and prod(sizes) <= max(_WIDE * count, 1000):
        return tuple(_runs(each) for each in points)
    return tuple(_runs(each) if len(each) <= 1000 else slice(each[0], each[-1]) for each in points)


def _distinct(values: Any) -> Any:
    if values.dtype.kind == "O":
        return np.array(sorted(set(values.tolist())), dtype=object)
    return np.unique(values)


def _runs(points: Any) -> list[Any]:
    """Return sorted whole numbers as ranges where they follow each other; others one by one."""
    if points.dtype.kind not in "iu" or len(points) < 2:
        return list(points)
    ends = np.flatnonzero(np.diff(points) != 1)
    starts = np.concatenate(([0], ends + 1))
    ends = np.concatenate((ends, [len(points) - 1]))
    return [
        slice(low, high) if low != high else low
        for low, high in zip(points[starts].tolist(), points[ends].tolist(), strict=True)
    ]


def _cells(found: Any, shape: ArrayShape, array: Any) -> Cells:
    domain = array.schema.domain
    names = [domain.dim(number).name for number in range(domain.ndim)]
    coordinates = tuple(np.asarray(found[name]).reshape(-1) for name in names)
    return Cells(cells_to_arrow(found, shape, array), coordinates)
