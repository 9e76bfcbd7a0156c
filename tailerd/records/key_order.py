"""Order the rows of one commit for consumers that apply records in sequence.

In a batch, pure deletes come first (`update_pairs`). A commit may have several change files, each
of several batches: an update that moves a row to another partition has its new image in one file
and its old image in another, in any order. So a commit of several batches is read in two passes:
the first yields the pure deletes of each batch, the second all other rows. The last record of a key
then matches the table. Without a key, images are paired by their indexes in a batch, so every old
image still comes before its new one.

Each row is in one part. Which one depends on its batch, so both passes must have the same batches:
the same files, read with the same limit. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import chain, groupby

import numpy as np

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Version
from tailerd.errors import UnsupportedFeatureError
from tailerd.records.update_pairs import NO_ROW, pair_rows


class KeyPass(enum.StrEnum):
    """The rows of each batch that a pass yields."""

    WHOLE = "whole"
    DELETES = "deletes"
    """Deletes, and old images whose key has no new image in the batch."""
    UPSERTS = "upserts"
    """All other rows: inserts, new images, and the old images paired with them."""


def select_pass(batch: ChangeBatch, key: Sequence[str], key_pass: KeyPass) -> ChangeBatch | None:
    """Return the rows of a batch that are in a part, in order; None if there are none.

    Raises:
        ConfigError: A key column is not in the batch.
        UnsupportedFeatureError: There is a key, and a change type is not defined by the protocol.
    """
    if key_pass is KeyPass.WHOLE:
        return batch
    try:
        changes = pair_rows(batch, key)
    except UnsupportedFeatureError:
        if key:
            raise
        # Without a key, changes of unknown kinds are passed on.
        return batch if key_pass is KeyPass.UPSERTS else None
    is_removal = changes.after == NO_ROW
    requested = is_removal if key_pass is KeyPass.DELETES else ~is_removal
    rows = np.concatenate((changes.before[requested], changes.after[requested]))
    rows = np.sort(rows[rows != NO_ROW])
    if not len(rows):
        return None
    if len(rows) == batch.num_rows:
        return batch
    return batch.take(rows)


def in_key_order(
    batches: Iterator[ChangeBatch],
    reread: Callable[[], Iterator[ChangeBatch]],
    key: Sequence[str],
    buffer_bytes: int,
) -> Iterator[ChangeBatch]:
    """Yield the rows of a commit's batches: first the pure deletes, then all others.

    A single batch is yielded unchanged. Several are kept in memory if they fit `buffer_bytes`, else
    read again for the second pass.

    Args:
        batches: All batches of the commit.
        reread: Returns the same batches again.
        key: Columns that identify a row.
        buffer_bytes: Maximum size to keep in memory; two batches may exceed it.

    Raises:
        ConfigError, UnsupportedFeatureError: As `select_pass`.
    """
    buffered: list[ChangeBatch] = []
    size = 0
    is_all = True
    for batch in batches:
        buffered.append(batch)
        size += batch.size_bytes
        if len(buffered) > 1 and size > buffer_bytes:
            is_all = False
            break
    if len(buffered) < 2:
        yield from buffered
        return
    for batch in buffered if is_all else chain(_drain(buffered), batches):
        if (deletes := select_pass(batch, key, KeyPass.DELETES)) is not None:
            yield deletes
    for batch in _drain(buffered) if is_all else reread():
        if (upserts := select_pass(batch, key, KeyPass.UPSERTS)) is not None:
            yield upserts


def commits_in_key_order(
    batches: Iterator[ChangeBatch],
    versions: Set[Version],
    reread: Callable[[Version], Iterator[ChangeBatch]],
    key: Sequence[str],
    buffer_bytes: int,
) -> Iterator[ChangeBatch]:
    """Yield batches of whole commits, some of them in the order of `in_key_order`.

    Args:
        batches: Batches in the order of the commits.
        versions: The commits to order; batches of others are yielded unchanged.
        reread: Returns the batches of a version again.
        key, buffer_bytes: As for `in_key_order`.
    """
    for version, found in groupby(batches, lambda each: each.version):
        if version in versions:
            yield from in_key_order(found, partial(reread, version), key, buffer_bytes)
        else:
            yield from found


def _drain(buffered: list[ChangeBatch]) -> Iterator[ChangeBatch]:
    """Yield the batches of a list, removing each from it to free its memory."""
    buffered.reverse()
    while buffered:
        yield buffered.pop()
