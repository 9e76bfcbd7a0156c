"""Small files that can be made again at any time: written without waiting for the disk.

A disk takes milliseconds to promise that a file survives a power cut. What merely spares readers
some work, and is recognised when it is damaged, need not wait for that.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailerd.storage.base import ObjectStore


@runtime_checkable
class NondurableStore(Protocol):
    """A store that can do so."""

    async def put_nondurable(self, path: str, data: bytes) -> None:
        """Write a file that is not there, as `ObjectStore.put` with `if_absent` does.

        Readers see all of it or nothing, whoever is killed; but a power cut may take it, or leave
        it shorter or with zeros in it.
        """
        ...


async def put_nondurable(store: ObjectStore, path: str, data: bytes) -> None:
    """Write such a file; where the store cannot, it is durable.

    Raises:
        FileExistsAlreadyError: It is there already.
        StorageError: It cannot be written.
    """
    if isinstance(store, NondurableStore):
        await store.put_nondurable(path, data)
    else:
        await store.put(path, data, if_absent=True)
