"""Order the rows of one commit for consumers that apply records by key.

In a batch, pure deletes come first (`update_pairs`). A commit may have several change files, each
of several batches: an update that moves a row to another partition has its new image in one file
and its old image in another, in any order. So a commit of several batches is read in two passes:
the first yields the pure deletes of each batch, the second all other rows. The last record of a key
then matches the table.

Each row is in one part. Which one depends on its batch, so both passes must have the same batches:
the same files, read with the same limit. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby

import numpy as np

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Version
from tailerd.records.update_pairs import NO_ROW, pair_rows


class Part(enum.StrEnum):
    """The rows of each batch that a pass yields."""

    WHOLE = "whole"
    REMOVED = "removed"
    """Deletes, and old images whose key has no new image in the batch."""
    WRITTEN = "written"
    """All other rows: inserts, new images, and the old images paired with them."""


def part_of(batch: ChangeBatch, key: Sequence[str], part: Part) -> ChangeBatch | None:
    """Return the rows of a batch that are in a part, in order; None if there are none.

    Raises:
        ConfigError: A key column is not in the batch.
        UnsupportedFeatureError: A change type is not defined by the protocol.
    """
    if part is Part.WHOLE:
        return batch
    changes = pair_rows(batch, key)
    is_removal = changes.after == NO_ROW
    wanted = is_removal if part is Part.REMOVED else ~is_removal
    rows = np.concatenate((changes.before[wanted], changes.after[wanted]))
    rows = np.sort(rows[rows != NO_ROW])
    if not len(rows):
        return None
    if len(rows) == batch.num_rows:
        return batch
    return batch.take(rows)


def in_key_order(
    batches: Iterator[ChangeBatch],
    again: Callable[[], Iterator[ChangeBatch]],
    key: Sequence[str],
    held_bytes: int,
) -> Iterator[ChangeBatch]:
    """Yield the rows of a commit's batches: first the pure deletes, then all others.

    A single batch is yielded unchanged. Several are kept in memory if they fit `held_bytes`, else
    read again for the second pass.

    Args:
        batches: All batches of the commit.
        again: Returns the same batches again.
        key: Columns that identify a row.
        held_bytes: Maximum size to keep in memory; two batches may exceed it.

    Raises:
        ConfigError, UnsupportedFeatureError: As `part_of`.
    """
    held: list[ChangeBatch] = []
    size = 0
    is_all = True
    for batch in batches:
        held.append(batch)
        size += batch.size_bytes
        if len(held) > 1 and size > held_bytes:
            is_all = False
            break
    if len(held) < 2:
        yield from held
        return
    for batch in held if is_all else chain(_emptied(held), batches):
        if (removed := part_of(batch, key, Part.REMOVED)) is not None:
            yield removed
    for batch in _emptied(held) if is_all else again():
        if (written := part_of(batch, key, Part.WRITTEN)) is not None:
            yield written


def commits_in_key_order(
    batches: Iterator[ChangeBatch],
    again: Callable[[Version], Iterator[ChangeBatch]],
    key: Sequence[str],
    held_bytes: int,
) -> Iterator[ChangeBatch]:
    """Yield batches of whole commits, those of change files in the order of `in_key_order`.

    Other batches are yielded unchanged: the plan has removed files before added ones.

    Args:
        batches: Batches in the order of the commits.
        again: Returns the batches of a version again.
        key, held_bytes: As for `in_key_order`.
    """
    for (version, kind), found in groupby(batches, lambda each: (each.version, each.change_source)):
        if kind is ChangeSourceKind.CDC:
            yield from in_key_order(found, partial(again, version), key, held_bytes)
        else:
            yield from found


def _emptied(held: list[ChangeBatch]) -> Iterator[ChangeBatch]:
    """Yield the batches of a list, removing each from it to free its memory."""
    held.reverse()
    while held:
        yield held.pop()
