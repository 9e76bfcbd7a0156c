"""Pairs deletes and inserts with the same key columns to updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailerd.rows.hash_kernels import Bools, Rows
from tailerd.rows.hash_runs import equal_runs
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
