"""Reads and compares a commit's rows, and returns those that differ in the commit's order.

Files are read once for the comparison; row groups with differing rows are read once more, unless
the rows fit the memory. All deletes come before all inserts; the two images of an update are
adjacent, among the inserts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.row_places import RowPlaces
from tailerd.reading.compared_files import (
    Columns,
    ComparedCommit,
    ComparedFiles,
    ComparedInputs,
)
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.merged_batches import merged
from tailerd.reading.placed_rows import placed, unplaced
from tailerd.reading.row_pairs import LeftRows, paired_changes
from tailerd.rows.difference import Leftover, Side
from tailerd.rows.exact import Inputs, PositionedRows, exact_difference
from tailerd.rows.groups import FileGroup, FilesToCompare, likely_rewrites
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
        rows, of_files, positions = unplaced(found, numbers)
        yield ChangeBatch(
            rows=rows,
            change_type=change_type,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            places=RowPlaces(
                table_id=task.table_id, files=of_files, rows=positions, prefix=commit.prefix
            ),
        )


def _changes(files: ComparedInputs, wanted: Columns) -> Changes:
    """Yield the rows that differ, with their places (`placed`)."""
    left, commit = LeftRows(), files.commit
    for group in commit.groups:
        for side, number, positions in _different(files, group):
            left.add(side, number, positions)
    changes: Changes | None = None
    if commit.key and set(commit.key) <= set(commit.schema(tuple(commit.key)).names):
        changes = paired_changes(files, left, commit.key, wanted)
    return _unpaired(files, left, wanted) if changes is None else changes


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
        aligned = _aligned(files, group, numbers)
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
    """Return the rows of aligned files that are left to compare, for files where not all are."""
    found: dict[tuple[Side, int], Positions] = {}
    for pair in aligned:
        positions = files.unequal(*pair)
        if positions is not None:
            found |= zip(zip(Side, pair, strict=True), positions, strict=True)
    return found


def _difference(files: ComparedInputs, inputs: Inputs) -> list[Leftover]:
    seed = secrets.randbits(_SEED_BITS)
    return exact_difference(inputs, seed=seed, max_bytes=files.working_bytes)


def _aligned(
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
    places = FileGroup(tuple(range(len(removed))), tuple(range(len(added))))
    pairs = likely_rewrites(
        places,
        [files.footer_bounds(Side.REMOVED, number) for number in removed],
        [files.footer_bounds(Side.ADDED, number) for number in added],
    )
    return [(removed[one], added[other]) for one, other in pairs]


def _known_pairs(group: FilesToCompare, numbers: Mapping[Side, list[int]]) -> list[tuple[int, int]]:
    removed, added = (set(numbers[side]) for side in Side)
    return [pair for pair in group.aligned if pair[0] in removed and pair[1] in added]


def _unpaired(files: ComparedInputs, left: LeftRows, columns: Columns) -> Changes:
    """Yield all deletes, then all inserts."""
    for side, change_type in ((Side.REMOVED, ChangeType.DELETE), (Side.ADDED, ChangeType.INSERT)):
        parts = left.read(files, side, columns)
        batches = (placed(rows, side, number, places) for number, places, rows in parts)
        for batch in merged(batches, files.limit):
            yield change_type, batch
