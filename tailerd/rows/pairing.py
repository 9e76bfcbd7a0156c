"""Deletes and inserts that belong together become updates: by key columns, or by row ids.

With row tracking, a row is carried over exactly where its stable id and commit version are on both
sides: `row_id_hashes` makes hashes of them that never collide, for `RowDifference` to cancel. What
is left pairs by `stable_id_hashes`; pairs of equal rows are no change, and are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailerd.rows.hash_kernels import Bools, Rows, scrambled
from tailerd.rows.hash_runs import equal_runs
from tailerd.rows.hashing import RowHashes


@dataclass(frozen=True, slots=True)
class Pairs:
    """Deleted and inserted rows that are one update each.

    Attributes:
        deleted, inserted: Numbers of the rows among the deletes and the inserts; pair i is
            (deleted[i], inserted[i]), ascending by `inserted`.
        ambiguous_deletes, ambiguous_inserts: Rows whose key is on both sides and not unique on
            one: they stay deletes and inserts.
    """

    deleted: Rows
    inserted: Rows
    ambiguous_deletes: int = 0
    ambiguous_inserts: int = 0

    def __len__(self) -> int:
        return len(self.deleted)

    def only(self, is_kept: Bools) -> Pairs:
        """Return some of the pairs; the rows of the others are deletes and inserts again.

        So with pairs by row id whose key differs: a sink that goes by key must see the delete of
        the old key before any insert.
        """
        return Pairs(
            self.deleted[is_kept],
            self.inserted[is_kept],
            self.ambiguous_deletes,
            self.ambiguous_inserts,
        )


def pair_by_key(deleted: RowHashes, inserted: RowHashes) -> Pairs:
    """Pair rows whose key is unique among the deletes and among the inserts.

    Args:
        deleted, inserted: Hashes of the key columns alone (`RowHasher` of a schema of them), or of
            stable row ids. In a key too null = null.
    """
    first = np.concatenate((deleted.first, inserted.first))
    second = np.concatenate((deleted.second, inserted.second))
    order, is_same = equal_runs(first, second)
    starts = np.flatnonzero(~is_same)
    lengths = np.diff(starts, append=len(order))
    is_delete = order < len(deleted)
    deletes = _sums(is_delete, starts)
    # Deletes stand before inserts in each run.
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


def row_id_hashes(ids: pa.Array, commit_versions: pa.Array) -> RowHashes | None:
    """Return what is equal exactly where stable row id and commit version are; None: one is null.

    Args:
        ids, commit_versions: int64, of the same length. A null says that the writer did not keep
            track: the rows must be compared by value.
    """
    if ids.null_count or commit_versions.null_count:
        return None
    first, second = (_scrambled(column) for column in (ids, commit_versions))
    return RowHashes(first, second)


def stable_id_hashes(ids: pa.Array) -> RowHashes:
    """Return what is equal exactly where stable row ids are; int64 without nulls."""
    return RowHashes(_scrambled(ids), np.zeros(len(ids), np.uint64))


def _scrambled(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    # One to one, and ranges of hashes have equal parts of them.
    return scrambled(column.to_numpy().view(np.uint64))
