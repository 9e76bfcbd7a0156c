"""Rows that are left over once equal ones have cancelled, and updates made of them by key."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_task import ChangeType
from tailerd.formats.delta.changes.candidate_files import CandidateFiles, Columns
from tailerd.reading.merged_batches import merged
from tailerd.rows.difference import Side
from tailerd.rows.hash_kernels import Rows
from tailerd.rows.hashing import RowHasher, RowHashes
from tailerd.rows.ordering import ordered_changes
from tailerd.rows.pairing import Pairs, pair_by_key
from tailerd.rows.positions import Positions

PAIRING_BYTES = 96
"""Memory that a row needs while its key is looked for."""
_SEED_BITS = 128

Changes = Iterator[tuple[ChangeType | pa.Array, pa.RecordBatch]]


class LeftRows:
    """Rows of both sides that are on one side only, by file and position."""

    def __init__(self) -> None:
        self._left: dict[Side, dict[int, Positions | None]] = {side: {} for side in Side}

    def add(self, side: Side, number: int, positions: Positions | None) -> None:
        """Note rows of a file; None: all that count."""
        self._left[side][number] = positions

    def read(
        self, candidates: CandidateFiles, side: Side, columns: Columns
    ) -> Iterator[tuple[int, Rows | int, pa.RecordBatch]]:
        """Yield the rows of a side in the commit's order: number of the file, positions, rows."""
        for number, positions in sorted(self._left[side].items(), key=lambda item: item[0]):
            wanted = None if positions is None else positions.to_numpy()
            for places, rows in candidates.read(side, number, wanted, columns):
                yield number, places, rows


class NumberedRows:
    """The left rows of one side, numbered in the commit's order.

    Attributes:
        files: Numbers of the files.
        positions: Of their rows, for each file.
        starts: Number of the first row of each file, and the count of all.
    """

    def __init__(
        self, candidates: CandidateFiles, side: Side, left: LeftRows, key: Columns
    ) -> None:
        self._candidates = candidates
        self._side = side
        found: dict[int, list[Rows]] = {}
        for number, places, rows in left.read(candidates, side, key):
            if isinstance(places, int):
                places = np.arange(places, places + rows.num_rows)
            found.setdefault(number, []).append(places)
        self.files = list(found)
        self.positions = [np.concatenate(found.pop(number)) for number in self.files]
        self.starts = np.cumsum([0, *map(len, self.positions)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, columns: Columns, numbers: Rows | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows in order: those of some ascending numbers, or all."""
        for place, file in enumerate(self.files):
            wanted = self.positions[place]
            if numbers is not None:
                first, end = np.searchsorted(numbers, self.starts[place : place + 2])
                wanted = wanted[numbers[first:end] - self.starts[place]]
            if len(wanted):
                for _, rows in self._candidates.read(self._side, file, wanted, columns):
                    yield rows

    def rows(self, columns: Columns, numbers: Rows) -> pa.RecordBatch:
        """Return the rows of some numbers, in their order."""
        ascending = np.sort(numbers)
        found = pa.concat_batches(list(self.read(columns, ascending)))
        return found.take(pa.array(np.searchsorted(ascending, numbers)))


def paired_changes(
    candidates: CandidateFiles, left: LeftRows, key: Sequence[str], columns: Columns
) -> Changes:
    """Yield the deletes, then the inserts with updates among them, whose old image comes first.

    Args:
        key: Columns of the schema.
    """
    deleted, inserted = (
        NumberedRows(candidates, side, left, tuple(key)) for side in (Side.REMOVED, Side.ADDED)
    )
    pairs = _pairs(candidates, deleted, inserted, tuple(key))
    alone = np.ones(len(deleted), np.bool_)
    alone[pairs.deleted] = False
    for batch in merged(deleted.read(columns, np.flatnonzero(alone)), candidates.limit):
        yield ChangeType.DELETE, batch
    at = 0
    for rows in merged(inserted.read(columns), candidates.limit):
        first, end = np.searchsorted(pairs.inserted, (at, at + rows.num_rows))
        if first == end:
            yield ChangeType.INSERT, rows
        else:
            before = deleted.rows(columns, pairs.deleted[first:end])
            yield _with_updates(before, rows, pairs.inserted[first:end] - at)
        at += rows.num_rows


def _with_updates(
    before: pa.RecordBatch, rows: pa.RecordBatch, updated: Rows
) -> tuple[pa.Array, pa.RecordBatch]:
    """Return rows, each old image right before the row at its place in `updated`."""
    count = before.num_rows
    order = ordered_changes(count, rows.num_rows, Pairs(np.arange(count), updated))
    places = order.rows + np.where(order.sides == Side.ADDED, count, 0)
    return order.change_types, pa.concat_batches([before, rows]).take(pa.array(places))


def _pairs(
    candidates: CandidateFiles, deleted: NumberedRows, inserted: NumberedRows, key: tuple[str, ...]
) -> Pairs:
    """Return which rows are updates; in ranges of the keys' hashes, so that memory is bounded."""
    if not len(deleted) or not len(inserted):
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
    hasher = RowHasher(candidates.schema(key), secrets.randbits(_SEED_BITS))
    wanted = (len(deleted) + len(inserted)) * PAIRING_BYTES // candidates.working_bytes
    bits = wanted.bit_length()
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
    """Return the hashes whose first bits are a part's, and the numbers of their rows."""
    first, second, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], []
    at = 0
    for batch in batches:
        hashes = hasher.hash(batch)
        places = np.arange(len(hashes))
        if bits:
            places = np.flatnonzero(hashes.first >> np.uint64(64 - bits) == np.uint64(part))
        taken = hashes.take(places)
        first.append(taken.first)
        second.append(taken.second)
        numbers.append(places + at)
        at += len(hashes)
    found = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
    return RowHashes(np.concatenate(first), np.concatenate(second)), found
