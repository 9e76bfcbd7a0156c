"""Delete many files in order, with as few requests as the store allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tailerd.storage.base import ObjectStore

BATCH_FILES = 1000
"""Maximum number of files per request."""


@runtime_checkable
class DeletesMany(Protocol):
    """A store that deletes several files with one request."""

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files of one bucket in batches; a batch starts when the previous one is complete.

        Within a batch the server chooses the order. Files that do not exist count as deleted.

        Raises:
            StorageError: Some files of a batch still exist, and all files of later batches.
        """
        ...


async def delete_all(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete files in the given order, in batches if the store supports them.

    Raises:
        StorageError: A file cannot be deleted; no file after its batch was deleted.
    """
    if isinstance(store, DeletesMany):
        await store.delete_many(paths)
        return
    for path in paths:
        await store.delete(path)


def requests_of(store: ObjectStore, files: int) -> int:
    """Return the number of requests that deleting `files` files takes."""
    return -(-files // BATCH_FILES) if isinstance(store, DeletesMany) else files
