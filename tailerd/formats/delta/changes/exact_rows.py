"""The rows of an exact commit: read, compared, and those that differ given in the commit's order.

Files are read once to compare them, and the row groups with rows that differ once more, unless what
was read fits the memory. All deletes come before all inserts; the two images of an update stand
side by side among the inserts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats.delta.changes.candidate_files import CandidateFiles, Columns
from tailerd.formats.delta.changes.exact_pairs import LeftRows, paired_changes
from tailerd.formats.delta.changes.placed_rows import placed, unplaced
from tailerd.formats.delta.changes.read import no_columns, places_of
from tailerd.formats.delta.protocol.rewritten_files import FilesToCompare
from tailerd.formats.delta.protocol.schema import parse_schema
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.merged_batches import merged
from tailerd.rows.difference import Side
from tailerd.rows.exact import Inputs, PositionedRows, exact_difference
from tailerd.rows.groups import FileGroup, likely_rewrites
from tailerd.rows.positions import Positions

MAX_GUESSED_FILES = 1000
"""Of more files the footers are not read before their rows."""
_SEED_BITS = 128

Changes = Iterable[tuple[ChangeType | pa.Array, pa.RecordBatch]]


def read_exact(
    task: ChangeTask, limit: BatchLimit, columns: Sequence[str] | None, files: FilesAhead
) -> Iterator[ChangeBatch]:
    """Read the change rows of an exact commit; blocking, for worker threads and executors.

    Rows are compared in all columns, whichever are asked for.

    Args:
        columns: Logical names to give, as far as the version has them; None for all.
        files: Opens the files.

    Raises:
        TableError: A file is missing or damaged.
    """
    candidates = CandidateFiles(task, limit, files)
    payload = candidates.payload
    if not parse_schema(payload.schema.text).fields:
        raise no_columns(task.version, next(chain(payload.removed, payload.added)).url)
    wanted = None if columns is None else tuple(columns)
    left = LeftRows()
    for group in payload.groups:
        for side, number, positions in _different(candidates, group):
            left.add(side, number, positions)
    changes: Changes | None = None
    if payload.key and set(payload.key) <= set(candidates.schema().names):
        changes = paired_changes(candidates, left, payload.key, wanted)
    if changes is None:
        changes = _unpaired(candidates, left, wanted)
    for change_type, found in changes:
        rows, numbers, places = unplaced(found, payload)
        yield ChangeBatch(
            rows=rows,
            change_type=change_type,
            version=task.version,
            timestamp_us=task.timestamp_us,
            change_source=task.change_source,
            places=replace(places_of(task, numbers, places), prefix=payload.prefix),
        )


def _different(
    candidates: CandidateFiles, group: FilesToCompare
) -> Iterator[tuple[Side, int, Positions | None]]:
    """Yield the rows of files that are on one side only; None: all that count."""
    numbers = {
        side: [number for number in given if not candidates.selects_nothing(side, number)]
        for side, given in ((Side.REMOVED, group.removed), (Side.ADDED, group.added))
    }
    if not all(numbers.values()):
        for side, those in numbers.items():
            yield from ((side, number, None) for number in those)
        return
    inputs = Inputs(
        schema=candidates.schema(),
        removed=numbers[Side.REMOVED],
        added=numbers[Side.ADDED],
        aligned=_aligned(candidates, group, numbers),
        read=lambda side, number, positions: _rows(candidates, side, number, positions),
    )
    seed = secrets.randbits(_SEED_BITS)
    for each in exact_difference(inputs, seed=seed, max_bytes=candidates.working_bytes):
        yield each.side, each.input, each.positions


def _aligned(
    candidates: CandidateFiles, group: FilesToCompare, numbers: Mapping[Side, list[int]]
) -> list[tuple[int, int]]:
    """Return pairs of a removed and an added file that are likely one file rewritten.

    The log says little of removed files; where it says too little, their footers do.
    """
    removed, added = numbers[Side.REMOVED], numbers[Side.ADDED]
    there = set(removed), set(added)
    known = [pair for pair in group.aligned if pair[0] in there[0] and pair[1] in there[1]]
    if known or len(removed) + len(added) > MAX_GUESSED_FILES:
        return known
    if len(removed) == len(added) == 1:
        return [(removed[0], added[0])]
    places = FileGroup(tuple(range(len(removed))), tuple(range(len(added))))
    pairs = likely_rewrites(
        places,
        [candidates.footer_bounds(Side.REMOVED, number) for number in removed],
        [candidates.footer_bounds(Side.ADDED, number) for number in added],
    )
    return [(removed[one], added[other]) for one, other in pairs]


def _rows(
    candidates: CandidateFiles, side: Side, number: int, positions: Positions | None
) -> Iterator[PositionedRows]:
    return candidates.read(side, number, None if positions is None else positions.to_numpy())


def _unpaired(candidates: CandidateFiles, left: LeftRows, columns: Columns) -> Changes:
    """Yield all deletes, then all inserts."""
    for side, change_type in ((Side.REMOVED, ChangeType.DELETE), (Side.ADDED, ChangeType.INSERT)):
        parts = left.read(candidates, side, columns)
        batches = (placed(rows, side, number, places) for number, places, rows in parts)
        for batch in merged(batches, candidates.limit):
            yield change_type, batch
