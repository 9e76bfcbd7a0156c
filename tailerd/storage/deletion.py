"""Many files deleted in order, with as few requests as a store can do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tailerd.storage.base import ObjectStore

BATCH_FILES = 1000
"""The most that one request deletes."""


@runtime_checkable
class DeletesMany(Protocol):
    """A store that deletes several files with one request."""

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files of one bucket, a batch at a time, each whole before the next begins.

        Within a batch the order is the server's own. Files that do not exist are deleted already.

        Raises:
            StorageError: Some of a batch are still there; those of later batches all are.
        """
        ...


async def delete_all(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete files in the order given, batch by batch where the store can do that.

    Raises:
        StorageError: A file cannot be deleted; nothing of what comes after its batch was.
    """
    if isinstance(store, DeletesMany):
        await store.delete_many(paths)
        return
    for path in paths:
        await store.delete(path)


def requests_of(store: ObjectStore, files: int) -> int:
    """Return how many requests deleting so many files is."""
    return -(-files // BATCH_FILES) if isinstance(store, DeletesMany) else files
