"""Reads and compares a commit's rows, and returns those that differ in the commit's order.

Files are read once for the comparison; row groups with differing rows are read once more, unless
the rows fit the memory. All deletes come before all inserts; the two images of an update are
adjacent, among the inserts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch, join_columns
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.row_positions import RowPositions
from tailerd.reading.compared_files import (
    Columns,
    ComparedCommit,
    ComparedFiles,
    ComparedInputs,
)
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.merged_batches import merge_batches
from tailerd.rows.difference import Leftover, Side
from tailerd.rows.exact import Inputs, PositionedRows, exact_difference
from tailerd.rows.groups import FileGroup, FilesToCompare, likely_rewrites
from tailerd.rows.hash_kernels import Bools, Rows
from tailerd.rows.hashing import RowHasher, RowHashes
from tailerd.rows.pairing import Pairs, ordered_changes, pair_by_key
from tailerd.rows.positions import Positions

MAX_GUESSED_FILES = 1000
"""With more files, footers are not read before the rows."""
_SEED_BITS = 128

Changes = Iterable[tuple[ChangeType | pa.Array, pa.RecordBatch]]


def read_compared(
    task: ChangeTask,
    commit: ComparedCommit,
    limit: BatchLimit,
    columns: Sequence[str] | None,
    files: FilesAhead,
) -> Iterator[ChangeBatch]:
    """Read the change rows of a commit whose rows are in Parquet files; as `compared_changes`.

    Args:
        commit: The files and their columns.
        files: Opens the files.
    """
    return compared_changes(task, ComparedFiles(commit, limit, files, task.size_bytes), columns)


def compared_changes(
    task: ChangeTask, inputs: ComparedInputs, columns: Sequence[str] | None
) -> Iterator[ChangeBatch]:
    """Read the change rows of a commit; blocking, for worker threads and executors.

    Rows are compared in all columns, whichever are requested.

    Args:
        task: Provides version, time and source of the batches.
        inputs: The rows of both sides.
        columns: Logical names to return, as far as the version has them; None for all.

    Raises:
        TableError: A file is missing or damaged.
    """
    commit = inputs.commit
    numbers = {side: commit.numbers(side) for side in Side}
    for change_type, found in _changes(inputs, None if columns is None else tuple(columns)):
        rows, of_files, positions = split_positions(found, numbers)
        yield ChangeBatch(
            rows=rows,
            change_type=change_type,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            positions=RowPositions(
                table_id=task.table_id, files=of_files, rows=positions, prefix=commit.prefix
            ),
        )


def _changes(files: ComparedInputs, requested: Columns) -> Changes:
    """Yield the rows that differ, with their positions (`placed`)."""
    left, commit = LeftRows(), files.commit
    for group in commit.groups:
        for side, number, positions in _different(files, group):
            left.add(side, number, positions)
    changes: Changes | None = None
    if commit.key and set(commit.key) <= set(commit.schema(tuple(commit.key)).names):
        changes = paired_changes(files, left, commit.key, requested)
    return _emit_unpaired(files, left, requested) if changes is None else changes


def _different(
    files: ComparedInputs, group: FilesToCompare
) -> Iterator[tuple[Side, int, Positions | None]]:
    """Yield the rows of files that are on one side only; None: all selected rows."""
    numbers = {
        side: [number for number in given if not files.commit.selects_nothing(side, number)]
        for side, given in ((Side.REMOVED, group.removed), (Side.ADDED, group.added))
    }
    if not all(numbers.values()):
        for side, those in numbers.items():
            yield from ((side, number, None) for number in those)
        return
    if ids := tuple(files.commit.row_ids):
        pairs = _known_pairs(group, numbers)
        left = _difference(files, _inputs(files, numbers, pairs, {}, ids))
        if len({each.side for each in left}) == len(Side):
            # A row that was rewritten with a new id may still have the values of a removed one.
            left = _difference(files, _inputs(files, numbers, (), {}).only(left))
    else:
        aligned = _pair_files(files, group, numbers)
        left = _difference(files, _inputs(files, numbers, aligned, _unequal(files, aligned)))
    for each in left:
        yield each.side, each.input, each.positions


def _inputs(
    files: ComparedInputs,
    numbers: Mapping[Side, list[int]],
    aligned: Sequence[tuple[int, int]],
    unequal: Mapping[tuple[Side, int], Positions],
    columns: Columns = None,
) -> Inputs:
    def read(side: Side, number: int, positions: Positions | None) -> Iterable[PositionedRows]:
        if positions is None:
            positions = unequal.get((side, number))
        if positions is not None and not len(positions):
            return ()
        return files.read(side, number, positions, columns, is_again=True)

    return Inputs(
        schema=files.commit.schema(columns),
        removed=numbers[Side.REMOVED],
        added=numbers[Side.ADDED],
        aligned=aligned,
        read=read,
    )


def _unequal(
    files: ComparedInputs, aligned: Sequence[tuple[int, int]]
) -> dict[tuple[Side, int], Positions]:
    """Return the rows of aligned files that remain to compare, for files where not all do."""
    found: dict[tuple[Side, int], Positions] = {}
    for pair in aligned:
        positions = files.unequal(*pair)
        if positions is not None:
            found |= zip(zip(Side, pair, strict=True), positions, strict=True)
    return found


def _difference(files: ComparedInputs, inputs: Inputs) -> list[Leftover]:
    seed = secrets.randbits(_SEED_BITS)
    return exact_difference(inputs, seed=seed, max_bytes=files.working_bytes)


def _pair_files(
    files: ComparedInputs, group: FilesToCompare, numbers: Mapping[Side, list[int]]
) -> list[tuple[int, int]]:
    """Return pairs of a removed file and an added one that likely rewrites it.

    A log has few statistics of removed files; if there are too few, their footers are read.
    """
    removed, added = numbers[Side.REMOVED], numbers[Side.ADDED]
    known = _known_pairs(group, numbers)
    if known or len(removed) + len(added) > MAX_GUESSED_FILES:
        return known
    if len(removed) == len(added) == 1:
        return [(removed[0], added[0])]
    positions = FileGroup(tuple(range(len(removed))), tuple(range(len(added))))
    pairs = likely_rewrites(
        positions,
        [files.footer_bounds(Side.REMOVED, number) for number in removed],
        [files.footer_bounds(Side.ADDED, number) for number in added],
    )
    return [(removed[one], added[other]) for one, other in pairs]


def _known_pairs(group: FilesToCompare, numbers: Mapping[Side, list[int]]) -> list[tuple[int, int]]:
    removed, added = (set(numbers[side]) for side in Side)
    return [pair for pair in group.aligned if pair[0] in removed and pair[1] in added]


def _emit_unpaired(files: ComparedInputs, left: LeftRows, columns: Columns) -> Changes:
    """Yield all deletes, then all inserts."""
    for side, change_type in ((Side.REMOVED, ChangeType.DELETE), (Side.ADDED, ChangeType.INSERT)):
        parts = left.read(files, side, columns)
        batches = (
            add_positions(rows, side, number, positions) for number, positions, rows in parts
        )
        for batch in merge_batches(batches, files.limit):
            yield change_type, batch


PAIRING_BYTES = 96
"""Memory per row while its key is matched, one range of hashes at a time."""
PAIR_BYTES = 16
"""Memory per row after it is paired, until all rows are returned."""


class LeftRows:
    """Rows of both sides that are on one side only, by file and position."""

    def __init__(self) -> None:
        self._left: dict[Side, dict[int, Positions | None]] = {side: {} for side in Side}

    def add(self, side: Side, number: int, positions: Positions | None) -> None:
        """Add rows of a file; None: all selected rows."""
        self._left[side][number] = positions

    def read(
        self, files: ComparedInputs, side: Side, columns: Columns
    ) -> Iterator[tuple[int, Rows | int, pa.RecordBatch]]:
        """Yield the rows of a side in the commit's order: number of the file, positions, rows."""
        for number, positions in sorted(self._left[side].items(), key=lambda item: item[0]):
            for row_positions, rows in files.read(side, number, positions, columns):
                yield number, row_positions, rows


class NumberedRows:
    """The left rows of one side, numbered in the commit's order.

    Memory: about one bit per row.
    """

    def __init__(self, files: ComparedInputs, side: Side, left: LeftRows, key: Columns) -> None:
        self._files = files
        self._side = side
        self._positions: list[tuple[int, Positions]] = []
        parts = left.read(files, side, key)
        for number, those in groupby(parts, key=lambda part: part[0]):
            found = [_positions(row_positions, rows.num_rows) for _, row_positions, rows in those]
            ascending = np.concatenate([each.to_numpy() for each in found])
            self._positions.append((number, Positions.from_ascending(ascending)))
        counts = [len(positions) for _, positions in self._positions]
        self._starts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def max_bytes(self) -> int:
        """Maximum size of a batch of rows."""
        return self._files.limit.max_bytes

    def read(self, columns: Columns, is_requested: Bools | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or the flagged ones, with their positions (`placed`), in order."""
        for position, (number, positions) in enumerate(self._positions):
            requested = positions
            if is_requested is not None:
                is_here = is_requested[self._starts[position] : self._starts[position + 1]]
                requested = Positions.from_ascending(positions.to_numpy()[is_here])
            if len(requested):
                for at, rows in self._files.read(self._side, number, requested, columns):
                    yield add_positions(rows, self._side, number, at)

    def rows(self, columns: Columns, numbers: Rows, max_bytes: int) -> pa.RecordBatch | None:
        """Return the rows with these numbers and their positions, in that order; at least one.

        None if several rows take more than `max_bytes`.
        """
        ascending = np.sort(numbers)
        found: list[pa.RecordBatch] = []
        size = 0
        bounds = np.searchsorted(ascending, self._starts)
        for position, (number, positions) in enumerate(self._positions):
            here = ascending[bounds[position] : bounds[position + 1]] - self._starts[position]
            if len(here):
                requested = Positions.from_ascending(positions.to_numpy()[here])
                for at, rows in self._files.read(self._side, number, requested, columns):
                    found.append(add_positions(rows, self._side, number, at))
                    size += found[-1].nbytes
                    if size > max_bytes and len(numbers) > 1:
                        return None
        return pa.concat_batches(found).take(pa.array(np.searchsorted(ascending, numbers)))


def _positions(positions: Rows | int, count: int) -> Positions:
    return Positions.from_ascending(
        np.arange(positions, positions + count) if isinstance(positions, int) else positions
    )


def paired_changes(
    files: ComparedInputs, left: LeftRows, key: Sequence[str], columns: Columns
) -> Changes | None:
    """Return the deletes, then the inserts and updates; the old image of an update comes first.

    Args:
        key: Columns of the schema.

    Returns:
        Rows are `placed`. None if there are too many to pair within the memory.
    """
    deleted, inserted = (
        NumberedRows(files, side, left, tuple(key)) for side in (Side.REMOVED, Side.ADDED)
    )
    if (len(deleted) + len(inserted)) * PAIR_BYTES > files.limit.memory_bytes // 2:
        return None
    return _emit_pairs(files, deleted, inserted, tuple(key), columns)


def _emit_pairs(
    files: ComparedInputs,
    deleted: NumberedRows,
    inserted: NumberedRows,
    key: tuple[str, ...],
    columns: Columns,
) -> Changes:
    pairs = _pairs(files, deleted, inserted, key)
    is_alone = np.ones(len(deleted), np.bool_)
    is_alone[pairs.deleted] = False
    for batch in merge_batches(deleted.read(columns, is_alone), files.limit):
        yield ChangeType.DELETE, batch
    at = 0
    for rows in merge_batches(inserted.read(columns), files.limit):
        first, end = np.searchsorted(pairs.inserted, (at, at + rows.num_rows))
        if first == end:
            yield ChangeType.INSERT, rows
        else:
            requested, updated = pairs.deleted[first:end], pairs.inserted[first:end] - at
            yield from _updated_rows(deleted, columns, rows, requested, updated)
        at += rows.num_rows


def _updated_rows(
    deleted: NumberedRows, columns: Columns, rows: pa.RecordBatch, requested: Rows, updated: Rows
) -> Changes:
    """Yield rows with the old images of those at `updated`, whose numbers are `requested`.

    Old images may be far larger than new ones. So as many are read at a time as fit a batch.
    """
    start = done = 0
    most = len(requested)
    while done < len(requested):
        count = min(most, len(requested) - done)
        before = deleted.rows(columns, requested[done : done + count], deleted.max_bytes)
        if before is None:
            most = max(1, count // 2)
            continue
        done += count
        end = rows.num_rows if done == len(requested) else int(updated[done])
        yield _with_updates(
            before, rows.slice(start, end - start), updated[done - count : done] - start
        )
        start = end


def _with_updates(
    before: pa.RecordBatch, rows: pa.RecordBatch, updated: Rows
) -> tuple[pa.Array, pa.RecordBatch]:
    """Return rows with each old image right before the row at its position in `updated`."""
    count = before.num_rows
    order = ordered_changes(count, rows.num_rows, Pairs(np.arange(count), updated))
    positions = order.rows + np.where(order.sides == Side.ADDED, count, 0)
    return order.change_types, pa.concat_batches([before, rows]).take(pa.array(positions))


def _pairs(
    files: ComparedInputs, deleted: NumberedRows, inserted: NumberedRows, key: tuple[str, ...]
) -> Pairs:
    """Return which rows are updates; by ranges of the keys' hashes, so that memory is bounded."""
    if not len(deleted) or not len(inserted):
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
    hasher = RowHasher(files.commit.schema(key), secrets.randbits(_SEED_BITS))
    requested = (len(deleted) + len(inserted)) * PAIRING_BYTES // files.working_bytes
    bits = requested.bit_length()
    ones, others = [], []
    for part in range(1 << bits):
        (one, one_numbers), (other, other_numbers) = (
            _hashes(side.read(key), hasher, bits, part) for side in (deleted, inserted)
        )
        found = pair_by_key(one, other)
        ones.append(one_numbers[found.deleted])
        others.append(other_numbers[found.inserted])
    one_side, other_side = np.concatenate(ones), np.concatenate(others)
    order = np.argsort(other_side)
    return Pairs(one_side[order], other_side[order])


def _hashes(
    batches: Iterable[pa.RecordBatch], hasher: RowHasher, bits: int, part: int
) -> tuple[RowHashes, Rows]:
    """Return the hashes of keys whose first `bits` bits are `part`, and the rows' numbers."""
    first, second, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], []
    at = 0
    for batch in batches:
        hashes = hasher.hash(batch.remove_column(batch.num_columns - 1))
        positions = np.arange(len(hashes))
        if bits:
            positions = np.flatnonzero(hashes.first >> np.uint64(64 - bits) == np.uint64(part))
        taken = hashes.take(positions)
        first.append(taken.first)
        second.append(taken.second)
        numbers.append(positions + at)
        at += len(hashes)
    found = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
    return RowHashes(np.concatenate(first), np.concatenate(second)), found


_POSITION = pa.field("position", pa.int64(), nullable=False)
"""The last column, with any names of the others."""
_ROW_BITS = 40


def add_positions(
    rows: pa.RecordBatch, side: Side, number: int, positions: Rows | int
) -> pa.RecordBatch:
    """Return rows with an additional column of their positions.

    Args:
        number: Of their file on its side.
        positions: Of the rows in it, or that of the first if they are consecutive.
    """
    if isinstance(positions, int):
        positions = np.arange(positions, positions + rows.num_rows)
    row_positions = positions | (2 * number + side) << _ROW_BITS
    return pa.RecordBatch.from_arrays(
        [*rows.columns, pa.array(row_positions, pa.int64())], schema=rows.schema.append(_POSITION)
    )


def split_positions(
    rows: pa.RecordBatch, numbers: Mapping[Side, Sequence[int]]
) -> tuple[pa.RecordBatch, Rows, Rows]:
    """Return rows without that column, the numbers of their files, and their positions in them.

    Args:
        numbers: For each side the numbers of its files, as in `RowPositions`.
    """
    *columns, last = rows.columns
    positions = last.to_numpy()
    of_side, sides = np.divmod(positions >> _ROW_BITS, 2)
    files = np.empty(len(positions), np.int64)
    for side, known in numbers.items():
        is_there = sides == side
        files[is_there] = np.array(known, np.int64)[of_side[is_there]]
    schema = rows.schema.remove(rows.num_columns - 1)
    without = join_columns(columns, schema, rows.num_rows)
    return without, files, positions & ((1 << _ROW_BITS) - 1)
