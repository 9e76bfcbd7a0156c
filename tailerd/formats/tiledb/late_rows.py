"""The rows changed by a late commit: one that appeared after later ones were delivered.

Clocks of clients differ, so a commit may appear with an earlier time than the newest. It changes
only cells that no later commit wrote or deleted. Late commits are emitted one by one, ascending,
each as if later ones of them did not exist yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.errors import RESET_OR_ON_GAP, MissingVersionError
from tailerd.formats.tiledb.cells import Box, box_of, read_box, read_near
from tailerd.formats.tiledb.columns import ArrayShape, conform_rows, shape_of
from tailerd.formats.tiledb.conditions import expression
from tailerd.formats.tiledb.step_rows import (
    Difference,
    States,
    at_same_places,
    difference,
    is_among,
    is_inside,
    no_rows,
    overlap,
    read_deletes,
)


def late_difference(states: States) -> Difference:
    """Return the changes of a late commit to the delivered state.

    The scan's `until_ms` is the commit's time, its `after_ms` the newest delivered one.

    Raises:
        MissingVersionError: The cells that later deletes leave cannot be determined.
        TableError, StorageError: It cannot be read.
    """
    shape = states.shape(states.scan.after_ms)
    if not shape.is_sparse:
        return _dense(states, shape)
    if states.scan.deletes or shape.allows_duplicates:
        found = _whole(states, shape)
    else:
        found = _compare_written(states, shape)
    if shape.allows_duplicates:
        return found
    return Difference(
        *(_never_written_again(rows, states, shape) for rows in (found.deleted, found.inserted))
    )


def _exclude_deleted(states: States, array: Any) -> str | None:
    """Return a condition for the cells that later deletes leave; None without later deletes."""
    texts = []
    for each, stored in zip(
        states.scan.later_deletes, read_deletes(states.scan.later_deletes), strict=True
    ):
        text = expression(stored, array)
        if text is None:
            raise MissingVersionError(
                f"What the late commit of {states.scan.until_ms} changed is not known, because"
                f" the later delete {each.name} has a condition that cannot be evaluated.",
                remedy=RESET_OR_ON_GAP,
            )
        texts.append(f"({text})")
    return " and ".join(texts) or None


def _compare_written(states: States, shape: ArrayShape) -> Difference:
    time = states.scan.until_ms
    with states.open_array(time, time) as array:
        own = shape_of(array, states.scan.url)
        every = read_box(array, own, None)
        condition = _exclude_deleted(states, array)
        after = read_box(array, own, None, condition=condition).rows if condition else every.rows
    before = _rows_near(states, time - 1, every.coordinates, shape, condition)
    before = at_same_places(before, every.rows, shape)
    return difference(before, conform_rows(after, shape))


def _rows_near(
    states: States,
    time_ms: int,
    coordinates: tuple[Any, ...],
    shape: ArrayShape,
    condition: str | None,
) -> pa.RecordBatch:
    if time_ms < 0:
        return no_rows(shape)
    with states.open_array(0, time_ms) as array:
        own = shape_of(array, states.scan.url)
        near = read_near(array, own, coordinates, condition=condition)
    return no_rows(shape) if near is None else conform_rows(near.rows, shape)


def _whole(states: States, shape: ArrayShape) -> Difference:
    """Compare the states right before and right after the commit, as later deletes leave them."""
    time = states.scan.until_ms
    found = []
    for at in (time - 1, time):
        if at < 0:
            found.append(no_rows(shape))
            continue
        with states.open_array(0, at) as array:
            own = shape_of(array, states.scan.url)
            rows = read_box(array, own, None, condition=_exclude_deleted(states, array)).rows
            found.append(conform_rows(rows, shape))
    return difference(*found)


def _never_written_again(rows: pa.RecordBatch, states: States, shape: ArrayShape) -> pa.RecordBatch:
    """Return the rows at coordinates to which nothing was written later."""
    for first, last in states.scan.later_writes:
        if not rows.num_rows:
            break
        with states.open_array(first, last) as array:
            own = shape_of(array, states.scan.url)
            written = conform_rows(read_box(array, own, None).rows, shape)
        keys = shape.keys
        is_again = is_among(rows.select(keys), written.select(keys))
        rows = rows.filter(pa.array(~is_again))
    return rows


def _dense(states: States, shape: ArrayShape) -> Difference:
    time, head = states.scan.until_ms, states.scan.after_ms
    own, later = _box(states, time, time), [_box(states, *w) for w in states.scan.later_writes]
    if own is None:
        return Difference(no_rows(shape), no_rows(shape))
    known = _around([_box(states, 0, time - 1) if time else None, *later])
    grown = _around([own, known])
    written = [each for each in later if each is not None]

    def visible(coordinates: tuple[Any, ...]) -> npt.NDArray[np.bool_]:
        found = is_inside(coordinates, own)
        for box in written:
            found &= ~is_inside(coordinates, box)
        return found

    inside = overlap(own, known)
    before = no_rows(shape)
    if inside is not None and time:
        with states.open_array(0, time - 1) as array:
            cells = read_box(array, shape_of(array, states.scan.url), inside)
        before = conform_rows(cells.rows.filter(pa.array(visible(cells.coordinates))), shape)
    with states.open_array(0, time) as array:
        cells = read_box(array, shape_of(array, states.scan.url), own)
        after = conform_rows(cells.rows.filter(pa.array(visible(cells.coordinates))), shape)
    found = difference(before, after)
    if grown == known:
        return found
    with states.open_array(0, head) as array:
        cells = read_box(array, shape, grown)
    is_new = ~is_inside(cells.coordinates, known) & ~is_inside(cells.coordinates, own)
    rows = pa.Table.from_batches([found.inserted, cells.rows.filter(pa.array(is_new))])
    return Difference(found.deleted, rows.combine_chunks().to_batches()[0])


def _box(states: States, first_ms: int, last_ms: int) -> Box | None:
    with states.open_array(first_ms, last_ms) as array:
        return box_of(array)


def _around(boxes: list[Box | None]) -> Box | None:
    """Return the smallest box around boxes."""
    there = [each for each in boxes if each is not None]
    if not there:
        return None
    return tuple(
        (min(low for low, _ in ranges), max(high for _, high in ranges))
        for ranges in zip(*there, strict=True)
    )
