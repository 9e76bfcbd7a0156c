"""Finds the rows that differ between two states of an array.

Sparse arrays without duplicates and dense ones have at most one row per coordinate, so a row that
exists before and after and differs is an update. With duplicates, rows are a multiset. How the rows
are found depends on the commits in between; if no cheaper way is exact, both states are read and
compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.tiledb.cells import (
    Box,
    Range,
    measure_box,
    read_box,
    read_coordinates,
    read_near,
)
from tailerd.formats.tiledb.columns import ArrayShape, conform_rows, read_shape
from tailerd.formats.tiledb.conditions import finds_deleted, is_malformed
from tailerd.formats.tiledb.library import open_array
from tailerd.formats.tiledb.protocol.conditions import Condition, read_condition
from tailerd.formats.tiledb.scan import StoredDelete, TileScan
from tailerd.rows.exact import compare_batches
from tailerd.rows.hashing import RowHasher
from tailerd.rows.pairing import pair_by_key
from tailerd.storage.stores import Stores

_SEED_BITS = 128


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that exist only before, and rows that exist only after; in one schema."""

    deleted: pa.RecordBatch
    inserted: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows with the change type of each; groups of `together` rows must not be separated."""

    rows: pa.RecordBatch
    kinds: pa.Array
    together: int = 1


class States:
    """An array opened at the times that a task requires.

    Args:
        scan: The task.
        stores: How the array is accessed.
        first_range: First and last coordinate of the first dimension to read; None for all.
    """

    def __init__(self, scan: TileScan, stores: Stores, first_range: Range | None = None) -> None:
        self.scan = scan
        self._stores = stores
        self._first_range = first_range

    def open_array(self, first_ms: int, last_ms: int) -> Any:
        """Open the array at the time range [first, last]; a context manager."""
        return open_array(self.scan.url, self._stores, first_ms, last_ms)

    def shape(self, time_ms: int) -> ArrayShape:
        """Return the columns at a time."""
        with self.open_array(0, time_ms) as array:
            return read_shape(array, self.scan.url)

    def within(self, box: Box | None) -> Box | None:
        """Return the part of a box that is read; None if there is none."""
        if box is None or self._first_range is None:
            return box
        return overlap((self._first_range, *box[1:]), box)

    @property
    def sparse_box(self) -> Box | None:
        """The box in which a sparse array is read; None for all cells."""
        return None if self._first_range is None else (self._first_range,)

    def all_rows(self, time_ms: int, shape: ArrayShape) -> pa.RecordBatch:
        """Return every row at a time, in another schema."""
        if time_ms < 0:
            return no_rows(shape)
        with self.open_array(0, time_ms) as array:
            own = read_shape(array, self.scan.url)
            box = self.within(measure_box(array))
            if box is None:
                return no_rows(shape)
            found = read_box(array, own, self.sparse_box if own.is_sparse else box)
            return conform_rows(found.rows, shape)


def no_rows(shape: ArrayShape) -> pa.RecordBatch:
    """Return an empty batch with an array's columns."""
    return pa.RecordBatch.from_pylist([], schema=shape.schema)


def read_deletes(deletes: tuple[StoredDelete, ...]) -> list[Condition]:
    """Parse conditions.

    Raises:
        TableError: One cannot be parsed.
    """
    return [read_condition(each.content, each.name) for each in deletes]


def check_deletes(deletes: tuple[StoredDelete, ...], shape: ArrayShape, array: Any) -> None:
    """Make sure that TileDB can read an array with these deletes.

    Raises:
        UnsupportedFeatureError: One compares with a value that is invalid for its column.
    """
    for each in deletes:
        if is_malformed(read_condition(each.content, each.name), shape, array):
            raise UnsupportedFeatureError(
                f"The delete {each.name} compares a column with a value of another size, such as"
                " null, and TileDB cannot read an array with such a delete.",
                remedy="Remove the file, and delete the cells again by a value.",
                path=each.name,
            )


def step_difference(states: States) -> Difference:
    """Return the difference between the two states of a step.

    Raises:
        TableError, StorageError: It cannot be read.
    """
    scan = states.scan
    shape = states.shape(scan.until_ms)
    if scan.after_ms < 0:
        return Difference(no_rows(shape), states.all_rows(scan.until_ms, shape))
    if states.shape(scan.after_ms).schema != shape.schema:
        return _whole(states, shape)
    if not shape.is_sparse:
        return _dense(states, shape)
    if scan.deletes and scan.has_writes:
        return _whole(states, shape)
    if scan.deletes:
        return _find_deleted(states, shape)
    return _compare_written(states, shape)


def _whole(states: States, shape: ArrayShape) -> Difference:
    scan = states.scan
    before = states.all_rows(scan.after_ms, shape)
    return difference(before, states.all_rows(scan.until_ms, shape))


def _compare_written(states: States, shape: ArrayShape) -> Difference:
    """Compare the cells that were written with those before at the same coordinates."""
    scan = states.scan
    with states.open_array(scan.after_ms + 1, scan.until_ms) as array:
        written = read_box(array, shape, states.sparse_box)
    if shape.allows_duplicates:
        return Difference(no_rows(shape), written.rows)
    with states.open_array(0, scan.after_ms) as array:
        near = read_near(array, shape, written.coordinates)
    before = no_rows(shape) if near is None else select_cells(near.rows, written.rows, shape)
    return difference(before, written.rows)


def _find_deleted(states: States, shape: ArrayShape) -> Difference:
    """Find the deleted rows: by the deletes' conditions, else by missing coordinates."""
    scan = states.scan
    if shape.allows_duplicates:
        return _whole(states, shape)
    with states.open_array(0, scan.after_ms) as array:
        check_deletes(scan.deletes, shape, array)
        condition = finds_deleted(read_deletes(scan.deletes), array, shape)
        if condition is not None:
            found = read_box(array, shape, states.sparse_box, condition=condition)
            return Difference(found.rows, no_rows(shape))
        there = read_coordinates(array, shape, states.sparse_box)
    with states.open_array(0, scan.until_ms) as array:
        left = read_coordinates(array, shape, states.sparse_box)
    gone = ~is_among(there.rows, left.rows)
    with states.open_array(0, scan.after_ms) as array:
        near = read_near(array, shape, tuple(each[gone] for each in there.coordinates))
    if near is None:
        return Difference(no_rows(shape), no_rows(shape))
    keys = there.rows.filter(pa.array(gone))
    return Difference(select_cells(near.rows, keys, shape), no_rows(shape))


def _dense(states: States, shape: ArrayShape) -> Difference:
    """Compare the box of the written cells; cells added by a growing box are inserts."""
    scan = states.scan
    with states.open_array(scan.after_ms + 1, scan.until_ms) as array:
        written = measure_box(array)
    with states.open_array(0, scan.until_ms) as array:
        after_box = measure_box(array)
    with states.open_array(0, scan.after_ms) as array:
        before_box = measure_box(array)
        inside = states.within(None if written is None else overlap(written, before_box))
        before = None if inside is None else read_box(array, shape, inside).rows
    grown = before_box is None or before_box != after_box
    search_box = states.within(after_box if grown else written)
    if search_box is None or written is None:
        return Difference(no_rows(shape), no_rows(shape))
    with states.open_array(0, scan.until_ms) as array:
        after = read_box(array, shape, search_box)
    rows = after.rows
    if grown:
        is_new = ~is_inside(after.coordinates, before_box)
        rows = rows.filter(pa.array(is_new | is_inside(after.coordinates, written)))
    return difference(no_rows(shape) if before is None else before, rows)


def overlap(one: Box, other: Box | None) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    if other is None:
        return None
    found = tuple(
        (max(low, lowest), min(high, highest))
        for (low, high), (lowest, highest) in zip(one, other, strict=True)
    )
    return found if all(low <= high for low, high in found) else None


def is_inside(coordinates: tuple[Any, ...], box: Box | None) -> npt.NDArray[np.bool_]:
    """Return for each cell whether it is in a box; False for all without a box."""
    count = len(coordinates[0])
    if box is None:
        return np.zeros(count, bool)
    inside = np.ones(count, bool)
    for values, (low, high) in zip(coordinates, box, strict=True):
        inside &= (values >= low) & (values <= high)
    return inside


def is_among(rows: pa.RecordBatch, others: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each row whether an equal one is in `others`, which have the same columns."""
    hasher = RowHasher(rows.schema, secrets.randbits(_SEED_BITS))
    mine, theirs = hasher.hash(rows), hasher.hash(others)
    kind = np.dtype([("first", "<u8"), ("second", "<u8")])
    one, other = np.empty(len(mine), kind), np.empty(len(theirs), kind)
    one["first"], one["second"] = mine.first, mine.second
    other["first"], other["second"] = theirs.first, theirs.second
    found: npt.NDArray[np.bool_] = np.isin(one, other)
    return found


def select_cells(
    rows: pa.RecordBatch, positions: pa.RecordBatch, shape: ArrayShape
) -> pa.RecordBatch:
    """Return the rows whose coordinates are those of one of `positions`."""
    keys = shape.keys
    return rows.filter(pa.array(is_among(rows.select(keys), positions.select(keys))))


def difference(before: pa.RecordBatch, after: pa.RecordBatch) -> Difference:
    """Return the multiset difference of rows of one schema."""
    if not before.num_rows or not after.num_rows:
        return Difference(before, after)
    deleted, inserted = compare_batches([before], [after], seed=secrets.randbits(_SEED_BITS))
    return Difference(_one_batch(deleted), _one_batch(inserted))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def in_order(rows: pa.RecordBatch, keys: list[str]) -> pa.RecordBatch:
    """Return rows in the order of their coordinates, then of their values: deterministic."""
    names = [*keys, *(name for name in rows.schema.names if name not in keys)]
    sortable = [name for name in names if not pa.types.is_nested(rows.schema.field(name).type)]
    if rows.num_rows < 2:
        return rows
    table = pa.Table.from_batches([rows])
    return rows.take(pa.compute.sort_indices(table, [(name, "ascending") for name in sortable]))


def changed_rows(found: Difference, shape: ArrayShape) -> Iterator[ChangedRows]:
    """Yield a difference as changes: deletes, then updates in pairs, then inserts."""
    keys = shape.keys
    deleted, inserted = (in_order(rows, keys) for rows in (found.deleted, found.inserted))
    if shape.allows_duplicates or not deleted.num_rows or not inserted.num_rows:
        yield _all(deleted, ChangeType.DELETE)
        yield _all(inserted, ChangeType.INSERT)
        return
    positions = pa.schema([shape.schema.field(name) for name in keys])
    hasher = RowHasher(positions, secrets.randbits(_SEED_BITS))
    pairs = pair_by_key(hasher.hash(deleted.select(keys)), hasher.hash(inserted.select(keys)))
    yield _all(_without(deleted, pairs.deleted), ChangeType.DELETE)
    yield _update_pairs(
        deleted.take(pa.array(pairs.deleted)), inserted.take(pa.array(pairs.inserted))
    )
    yield _all(_without(inserted, pairs.inserted), ChangeType.INSERT)


def _all(rows: pa.RecordBatch, kind: ChangeType) -> ChangedRows:
    return ChangedRows(rows, pa.repeat(pa.scalar(kind.value), rows.num_rows))


def _without(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    keep = np.ones(rows.num_rows, bool)
    keep[numbers] = False
    return rows.filter(pa.array(keep))


def _update_pairs(before: pa.RecordBatch, after: pa.RecordBatch) -> ChangedRows:
    count = before.num_rows
    both = pa.Table.from_batches([before, after])
    order = np.arange(2 * count).reshape(2, count).T.reshape(-1)
    kinds = np.array([ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value])
    rows = _one_batch(both.take(pa.array(order)))
    return ChangedRows(rows, pa.array(np.tile(kinds, count), pa.string()), together=2)


def snapshot_rows(states: States) -> tuple[pa.RecordBatch, ArrayShape]:
    """Return every row of a snapshot, or of a share of it, in the order of coordinates."""
    scan = states.scan
    with states.open_array(0, scan.until_ms) as array:
        shape = read_shape(array, scan.url)
        box = states.within(measure_box(array))
        if box is None:
            return no_rows(shape), shape
        return in_order(read_box(array, shape, box).rows, shape.keys), shape
