"""Pairs deletes and inserts with the same key columns to updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_task import ChangeType
from tailerd.rows.difference import Side, equal_runs
from tailerd.rows.hash_kernels import Bools, Rows
from tailerd.rows.hashing import RowHashes


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of a deleted and an inserted row that are one update each.

    Attributes:
        deleted, inserted: Numbers of the rows among the deletes and the inserts; pair i is
            (deleted[i], inserted[i]), ascending by `inserted`.
        ambiguous_deletes, ambiguous_inserts: Number of rows whose key is on both sides but not
            unique on one: they remain deletes and inserts.
    """

    deleted: Rows
    inserted: Rows
    ambiguous_deletes: int = 0
    ambiguous_inserts: int = 0

    def __len__(self) -> int:
        return len(self.deleted)


def pair_by_key(deleted: RowHashes, inserted: RowHashes) -> Pairs:
    """Pair rows whose key is unique among the deletes and among the inserts.

    Args:
        deleted, inserted: Hashes of the key columns alone (`RowHasher` of a schema of them).
            null = null in keys too.
    """
    first = np.concatenate((deleted.first, inserted.first))
    second = np.concatenate((deleted.second, inserted.second))
    order, is_same = equal_runs(first, second)
    starts = np.flatnonzero(~is_same)
    lengths = np.diff(starts, append=len(order))
    is_delete = order < len(deleted)
    deletes = _sums(is_delete, starts)
    # Deletes come before inserts in each run.
    is_pair = (lengths == 2) & (deletes == 1)
    one, other = order[starts[is_pair]], order[starts[is_pair] + 1] - len(deleted)
    ascending = np.argsort(other)
    is_ambiguous = (deletes > 0) & (deletes < lengths) & ~is_pair
    return Pairs(
        one[ascending],
        other[ascending],
        int(deletes[is_ambiguous].sum()),
        int((lengths - deletes)[is_ambiguous].sum()),
    )


def _sums(values: Bools, starts: Rows) -> Rows:
    if not len(starts):
        return np.empty(0, np.int64)
    found: Rows = np.add.reduceat(values.astype(np.int64), starts)
    return found


# A key that is deleted and inserted again in one commit must not end as deleted, so every delete
# comes before every insert. The two images of an update are adjacent, at the position of the new
# one.

_TYPES = (
    ChangeType.DELETE,
    ChangeType.INSERT,
    ChangeType.UPDATE_PREIMAGE,
    ChangeType.UPDATE_POSTIMAGE,
)
_DELETE, _INSERT, _PREIMAGE, _POSTIMAGE = range(len(_TYPES))


@dataclass(frozen=True, slots=True)
class OrderedChanges:
    """Changes in the order in which they are delivered; arrays of one length.

    Attributes:
        sides: `Side` of each row: whether `rows` counts deleted or inserted rows.
        rows: Number of the row among the deleted or the inserted ones.
        change_types: Dictionary of `_change_type`, as in `ChangeBatch.change_type`.
    """

    sides: npt.NDArray[np.int8]
    rows: Rows
    change_types: pa.DictionaryArray

    def __len__(self) -> int:
        return len(self.rows)


def ordered_changes(deleted: int, inserted: int, pairs: Pairs | None = None) -> OrderedChanges:
    """Return the order of deleted and inserted rows.

    Args:
        deleted, inserted: Number of rows; they are numbered by input and position, and keep that
            order.
        pairs: Which of them are updates.
    """
    before = np.full(inserted, -1)
    alone = np.ones(deleted, np.bool_)
    if pairs is not None:
        before[pairs.inserted] = pairs.deleted
        alone[pairs.deleted] = False
    deletes = np.flatnonzero(alone)
    is_updated = before >= 0
    # Each inserted row's position; the old image of an update is right before it.
    positions = len(deletes) + np.arange(inserted) + np.cumsum(is_updated)
    count = len(deletes) + inserted + int(is_updated.sum())
    sides = np.full(count, Side.ADDED, np.int8)
    rows = np.empty(count, np.int64)
    kinds = np.full(count, _INSERT, np.int8)
    sides[: len(deletes)], rows[: len(deletes)] = Side.REMOVED, deletes
    kinds[: len(deletes)] = _DELETE
    rows[positions] = np.arange(inserted)
    updated = positions[is_updated]
    kinds[updated] = _POSTIMAGE
    sides[updated - 1], rows[updated - 1] = Side.REMOVED, before[is_updated]
    kinds[updated - 1] = _PREIMAGE
    names = pa.array([kind.value for kind in _TYPES])
    return OrderedChanges(sides, rows, pa.DictionaryArray.from_arrays(pa.array(kinds), names))
