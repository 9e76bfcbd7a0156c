"""Reads cells of an open array as Arrow: in boxes, at coordinates, or by a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from tailerd.formats.tiledb.columns import ArrayShape, Buffers, cells_to_arrow
from tailerd.formats.tiledb.library import load

MAX_POINTS = 50_000
"""Maximum number of coordinates that are requested individually; above, their box is read."""
_WIDE = 4
"""Maximum ratio of requested combinations of coordinates to cells."""

Range = tuple[Any, Any]
Box = tuple[Range, ...]
"""First and last coordinate of each dimension, both inclusive, as in TileDB."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows at coordinates, and the coordinates in TileDB's types."""

    rows: pa.RecordBatch
    coordinates: tuple[Any, ...]


def measure_box(array: Any) -> Box | None:
    """Return the smallest box with all cells; None for an array without cells."""
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
        box: None for all cells.
        condition: In TileDB's query language, for sparse arrays; selects cells for which it holds.
    """
    indices = tuple(slice(low, high) for low, high in box) if box is not None else (slice(None),)
    query = array.query(coords=True, order="U" if shape.is_sparse else "C", cond=condition)
    return _cells(query, indices, shape, array)


def count_cells(array: Any) -> int:
    """Return the number of rows: cells of a sparse array, or of the written box of a dense one."""
    if array.schema.sparse:
        names = [array.schema.domain.dim(0).name]
        query = array.query(attrs=[], dims=names, order="U")
        found = _results(query, (slice(None),), array)[names[0]]
        is_var = array.schema.domain.dim(0).isvar
        itemsize = 1 if is_var else np.dtype(array.schema.domain.dim(0).dtype).itemsize
        return len(found[1]) if is_var else found[0].nbytes // itemsize
    box = measure_box(array)
    return 0 if box is None else prod(_length(low, high) for low, high in box)


def _length(low: Any, high: Any) -> int:
    first, last = (np.asarray(each).astype(np.int64) for each in (low, high))
    return int(last - first) + 1


def read_coordinates(array: Any, shape: ArrayShape, box: Box | None) -> Cells:
    """Return only the coordinates of the cells of a sparse array, in a box."""
    indices = tuple(slice(low, high) for low, high in box) if box is not None else (slice(None),)
    names = [array.schema.domain.dim(n).name for n in range(array.schema.domain.ndim)]
    query = array.query(attrs=[], dims=names, order="U")
    return _cells(query, indices, shape, array, names)


def read_near(
    array: Any, shape: ArrayShape, coordinates: Sequence[Any], *, condition: str | None = None
) -> Cells | None:
    """Return at least the cells of a sparse array at coordinates, possibly others between them.

    Args:
        coordinates: An array for each dimension, of equal length.

    Returns:
        None without coordinates.
    """
    count = len(coordinates[0])
    if not count:
        return None
    query = array.query(coords=True, order="U", cond=condition)
    return _cells(query, _selection(coordinates, count), shape, array)


def _selection(coordinates: Sequence[Any], count: int) -> tuple[Any, ...]:
    points = [_distinct(each) for each in coordinates]
    sizes = [len(each) for each in points]
    if max(sizes) <= MAX_POINTS and prod(sizes) <= max(_WIDE * count, 1000):
        return tuple(_runs(each) for each in points)
    return tuple(_runs(each) if len(each) <= 1000 else slice(each[0], each[-1]) for each in points)


def _distinct(values: Any) -> Any:
    if values.dtype.kind == "O":
        return np.array(sorted(set(values.tolist())), dtype=object)
    return np.unique(values)


def _runs(points: Any) -> list[Any]:
    """Return sorted whole numbers as ranges of consecutive ones; other types individually."""
    if points.dtype.kind not in "iu" or len(points) < 2:
        return list(points)
    ends = np.flatnonzero(np.diff(points) != 1)
    starts = np.concatenate(([0], ends + 1))
    ends = np.concatenate((ends, [len(points) - 1]))
    return [
        slice(low, high) if low != high else low
        for low, high in zip(points[starts].tolist(), points[ends].tolist(), strict=True)
    ]


def _within_current_domain(array: Any, selection: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the part of a selection that the array's current domain has; None: nothing.

    A current domain grows, and TileDB refuses coordinates of a later one.
    """
    current = array.schema.current_domain
    if current.is_empty:
        return selection
    clipped = []
    for number, selected in enumerate(selection):
        dim = array.schema.domain.dim(number)
        # Others have no ranges that TileDB's library returns.
        if dim.isvar or np.dtype(dim.dtype).kind not in "iuf":
            clipped.append(selected)
            continue
        part = _clip_selection(selected, *current.ndrectangle.range(number))
        if part is None:
            return None
        clipped.append(part)
    return tuple(clipped)


def _clip_selection(selected: Any, low: Any, high: Any) -> Any:
    """Return the part of a slice, or of points and slices, within [low, high]; None if empty."""
    if isinstance(selected, list):
        parts = [_clip_selection(each, low, high) for each in selected]
        return [each for each in parts if each is not None] or None
    if not isinstance(selected, slice):
        return selected if low <= selected <= high else None
    if selected.start is None:
        return selected
    start, stop = max(selected.start, low), min(selected.stop, high)
    return slice(start, stop) if start <= stop else None


def _results(query: Any, selection: tuple[Any, ...], array: Any) -> Mapping[str, Buffers]:
    """Run a query and return its buffers: TileDB's conversion of them loses nulls."""
    indexer = query.multi_index
    indexer._set_pyquery()
    indexer.subarray = load().Subarray(array)
    indexer._set_ranges(selection)
    indexer.pyquery.submit()
    found: Mapping[str, Buffers] = indexer.pyquery.results()
    return found


def _cells(
    query: Any,
    selection: tuple[Any, ...],
    shape: ArrayShape,
    array: Any,
    names: Sequence[str] | None = None,
) -> Cells:
    """Return the selected cells; `names` are the requested columns, None for all."""
    domain = array.schema.domain
    dims = [domain.dim(number) for number in range(domain.ndim)]
    within = _within_current_domain(array, selection)
    if within is None:
        fields = [each for each in shape.schema if names is None or each.name in names]
        nothing = [pa.array([], each.type) for each in fields]
        rows = pa.RecordBatch.from_arrays(nothing, schema=pa.schema(fields))
        return Cells(rows, tuple(np.empty(0, "O" if dim.isvar else dim.dtype) for dim in dims))
    found = _results(query, within, array)
    rows = cells_to_arrow(found, shape, array)
    coordinates = []
    for dim, column in zip(dims, shape.dimensions, strict=True):
        if dim.isvar:
            values = rows.column(column.field.name).to_numpy(zero_copy_only=False)
        else:
            values = found[dim.name][0].view(dim.dtype)
        coordinates.append(values)
    return Cells(rows, tuple(coordinates))
