"""Pair the rows of a batch into changes: an update has two images.

A change file has `update_preimage` and `update_postimage` rows, but no link between them. They are
paired only if the pairing is certain:

- Case A: a key is given. The k-th preimage of a key is paired with its k-th postimage.
- Case B: no key, and the images alternate: each preimage is directly followed by a postimage, and
  there are no other postimages, as Delta Spark writes them.
- Case C: no key, one preimage and one postimage, in either order.

In all other cases (all preimages first, as delta-rs writes them; a key that the update changed)
the images are separate changes: a preimage deletes the old row, a postimage creates the new one.
Both are correct, and no row is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.records.json_columns import ColumnTexts, column_texts, join_pieces

Rows = npt.NDArray[np.int64]

NO_ROW = -1


@dataclass(frozen=True, slots=True)
class RowChanges:
    """One entry per change; both arrays have the same length.

    Attributes:
        before, after: Row numbers in the batch; `NO_ROW` if the change has no such image.

    Pure deletes come first, so that a keyed consumer that applies the changes in order keeps a row
    that one commit deletes and inserts again; `key_order` does the same across the batches of a
    commit. Deletes and other changes are each in row order.
    """

    before: Rows
    after: Rows

    @property
    def updates(self) -> Rows:
        """Numbers of the changes that have both images."""
        return np.flatnonzero((self.before != NO_ROW) & (self.after != NO_ROW))


@dataclass(frozen=True, slots=True)
class ChangePart:
    """Changes of a batch that are encoded together: a pair is never split."""

    batch: ChangeBatch
    changes: RowChanges

    def halves(self) -> tuple[ChangePart, ChangePart] | None:
        """Return the first and the second half of the changes, each with the rows it needs."""
        count = len(self.changes.before)
        if count < 2:
            return None
        return self._range(0, count // 2), self._range(count // 2, count)

    def _range(self, start: int, end: int) -> ChangePart:
        before, after = self.changes.before[start:end], self.changes.after[start:end]
        used = np.unique(np.concatenate((before, after)))
        used = used[used != NO_ROW]
        changes = RowChanges(_renumber_rows(before, used), _renumber_rows(after, used))
        return ChangePart(self.batch.take(used), changes)


def _renumber_rows(rows: Rows, used: Rows) -> Rows:
    return np.where(rows == NO_ROW, NO_ROW, np.searchsorted(used, rows))


def pair_rows(batch: ChangeBatch, key: Sequence[str] = ()) -> RowChanges:
    """Return the changes in the rows of a batch.

    Args:
        batch: Pairs never extend beyond it.
        key: Names of the table's columns that identify a row; empty if there are none.

    Raises:
        ConfigError: A key column is not in the batch.
        UnsupportedFeatureError: A change type is not in the protocol.
    """
    count = batch.num_rows
    rows = np.arange(count, dtype=np.int64)
    nothing = np.full(count, NO_ROW, dtype=np.int64)
    if isinstance(batch.change_type, ChangeType):
        if batch.change_type in (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE):
            return RowChanges(rows, nothing)
        return RowChanges(nothing, rows)
    kinds = _kinds(batch.change_type)
    is_before = _IS_BEFORE[kinds]
    before_images = np.flatnonzero(kinds == _PREIMAGE)
    after_images = np.flatnonzero(kinds == _POSTIMAGE)
    if key:
        first, second = _paired_by_key(batch, key, before_images, after_images)
    else:
        first, second = _pair_in_order(before_images, after_images)
    before_of = nothing.copy()
    before_of[second] = first
    is_before[first] = False
    is_paired_before = np.zeros(count, dtype=bool)
    is_paired_before[first] = True
    removed = np.flatnonzero(is_before)
    written = np.flatnonzero(~is_before & ~is_paired_before)
    return RowChanges(
        np.concatenate((removed, before_of[written])),
        np.concatenate((np.full(len(removed), NO_ROW, dtype=np.int64), written)),
    )


def replay_order(batch: ChangeBatch, key: Sequence[str]) -> Rows | None:
    """Return the row order of the changes, with the old image before the new one.

    None if the rows are already in that order.

    Raises:
        ConfigError: A key column is not in the batch.
    """
    if isinstance(batch.change_type, ChangeType):
        return None
    changes = pair_rows(batch, key)
    order = np.column_stack((changes.before, changes.after)).reshape(-1)
    order = order[order != NO_ROW]
    return None if bool((order[1:] > order[:-1]).all()) else order


_KINDS = [kind.value for kind in ChangeType]
_PREIMAGE = _KINDS.index(ChangeType.UPDATE_PREIMAGE)
_POSTIMAGE = _KINDS.index(ChangeType.UPDATE_POSTIMAGE)
_IS_BEFORE = np.array([kind in (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE) for kind in _KINDS])


def _kinds(changes: pa.Array) -> npt.NDArray[np.int8]:
    """Return for each row the index of its change in `_KINDS`."""
    if not pa.types.is_dictionary(changes.type):
        changes = changes.dictionary_encode()
    words = changes.dictionary.to_pylist()
    unknown = [word for word in words if word not in _KINDS]
    if unknown or changes.null_count:
        raise UnsupportedFeatureError(
            f"A change file has the change type {unknown[0] if unknown else None!r}, which the"
            f" protocol does not name ({', '.join(_KINDS)}): whether such a row was inserted or"
            " deleted is unknown.",
            remedy="`format: json` without a key passes it on unchanged; `changes: files` reads the"
            " data files instead.",
        )
    numbers = np.array([_KINDS.index(word) for word in words], dtype=np.int8)
    indices: npt.NDArray[np.integer] = changes.indices.to_numpy()
    from_rows: npt.NDArray[np.int8] = numbers[indices]
    return from_rows


def _pair_in_order(before: Rows, after: Rows) -> tuple[Rows, Rows]:
    if len(before) == len(after):
        # Case B
        if bool((after == before + 1).all()):
            return before, after
        # Case C
        if len(before) == 1:
            return before, after
    return before[:0], after[:0]


def _paired_by_key(
    batch: ChangeBatch, key: Sequence[str], before: Rows, after: Rows
) -> tuple[Rows, Rows]:
    # Case A
    if not len(before) or not len(after):
        return before[:0], after[:0]
    if len(before) == len(after) and bool((after == before + 1).all()):
        # As Delta Spark writes them. If no update changes the key, adjacent images are the pairs.
        arrays, _ = key_columns(batch.rows, key)
        if all(_are_alike(array, before, after) for array in arrays):
            return before, after
    texts = key_texts(batch.rows, key)
    codes = texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    before_ids, after_ids = _number_rows(codes, before), _number_rows(codes, after)
    _, first, second = np.intersect1d(
        before_ids, after_ids, assume_unique=True, return_indices=True
    )
    return before[first], after[second]


def _are_alike(column: pa.Array, before: Rows, after: Rows) -> bool:
    """Return whether the given rows certainly have the same values."""
    if column.null_count or pa.types.is_nested(column.type) or pa.types.is_floating(column.type):
        return False
    return bool(column.take(pa.array(before)).equals(column.take(pa.array(after))))


def _number_rows(codes: Rows, rows: Rows) -> Rows:
    """Return one number per row that encodes its key and its index among rows of that key."""
    from_rows = codes[rows]
    order = np.argsort(from_rows, kind="stable")
    ascending = from_rows[order]
    is_start = np.concatenate(([True], ascending[1:] != ascending[:-1]))
    starts = np.flatnonzero(is_start)
    indexes = np.arange(len(rows)) - starts[np.cumsum(is_start) - 1]
    numbered = np.empty(len(rows), dtype=np.int64)
    numbered[order] = ascending * len(codes) + indexes
    return numbered


def known_columns(batch: ChangeBatch, names: Sequence[str]) -> list[str]:
    """Return those of the columns that choose a record's topic or partition that the batch has.

    Missing ones are reported by the code that routes by them.
    """
    return [name for name in names if name in batch.rows.schema.names]


def key_texts(rows: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """Return the key of each row as the text of a JSON array; equal keys have equal texts.

    Raises:
        ConfigError: A key column is not among the table's columns.
    """
    arrays, fields = key_columns(rows, key)
    pieces: list[str | ColumnTexts] = []
    for index, (array, field) in enumerate(zip(arrays, fields, strict=True)):
        pieces.append("," if index else "")
        pieces.append(column_texts(array, field, quote_decimals=True))
    return join_pieces(["[", *pieces, "]"], rows.num_rows)


def key_columns(rows: pa.RecordBatch, key: Sequence[str]) -> tuple[list[pa.Array], list[pa.Field]]:
    """Return the columns of the key, in its order.

    Raises:
        ConfigError: A key column is not among the table's columns.
    """
    indexes = [rows.schema.get_field_index(name) for name in key]
    for name, index in zip(key, indexes, strict=True):
        if index < 0:
            raise ConfigError(
                f"The key column {name!r} is not among the table's columns"
                f" ({', '.join(rows.schema.names)}).",
                remedy="Correct `key`, or the column that chooses topic or partition.",
            )
    return [rows.column(index) for index in indexes], [rows.schema.field(at) for at in indexes]
