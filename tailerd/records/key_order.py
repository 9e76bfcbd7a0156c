"""The batches of one commit in the order that a reader by key needs.

In a batch what only removes comes first (`update_pairs`). A change file may be several batches, and
a commit several files: an update that moves a row to another partition has its new image in one and
the old one in another, in any order. So a commit of several batches is gone through twice: first
what only removes is given of each, then the rest. What a key has last is then what the table has.

Each row is in one part. Which one depends on the batch it is in, so both times the batches must be
the same: the same files, read with the same limit. Pure.
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
    """Which rows of each batch of a commit are given."""

    WHOLE = "whole"
    REMOVED = "removed"
    """Deletes, and old images whose key has no new one in their batch."""
    WRITTEN = "written"
    """The rest: inserts, new images, and the old ones that belong to them."""


def part_of(batch: ChangeBatch, key: Sequence[str], part: Part) -> ChangeBatch | None:
    """Return the rows of a batch that a part has, in their order; None where it has none.

    Raises:
        ConfigError: A key column is not in the batch.
        UnsupportedFeatureError: A change type is none of the protocol's.
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
    """Yield the rows of a commit's batches: all that only removes, then the rest.

    One batch is given as it is. Several that are small together are held, larger ones read again.

    Args:
        batches: All of the commit.
        again: Gives the same batches once more.
        key: Columns that identify a row.
        held_bytes: How much may be held; two batches always are.

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
    """Yield batches of whole commits, those of change files as `in_key_order` does.

    Others are given as they are: planning puts removed files before added ones.

    Args:
        batches: In the order of the commits.
        again: Gives those of a version once more.
        key, held_bytes: As `in_key_order` takes them.
    """
    for (version, kind), found in groupby(batches, lambda each: (each.version, each.change_source)):
        if kind is ChangeSourceKind.CDC:
            yield from in_key_order(found, partial(again, version), key, held_bytes)
        else:
            yield from found


def _emptied(held: list[ChangeBatch]) -> Iterator[ChangeBatch]:
    """Yield what is held, and let go of each."""
    held.reverse()
    while held:
        yield held.pop()
