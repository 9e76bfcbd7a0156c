"""Small files that can be recreated at any time: written without fsync.

An fsync takes milliseconds. A file that merely saves readers some work, and whose damage is
detected, does not need one.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tailerd.storage.base import ObjectStore


@runtime_checkable
class NondurableStore(Protocol):
    """A store that can write without fsync."""

    async def put_nondurable(self, path: str, data: bytes, *, if_absent: bool = True) -> None:
        """Write a file as `ObjectStore.put` does, but without fsync.

        Readers see all of it or nothing, even if a process is killed; but a power failure may lose
        it, truncate it or leave zeros in it.
        """
        ...


async def put_nondurable(
    store: ObjectStore, path: str, data: bytes, *, if_absent: bool = True
) -> None:
    """Write such a file; durably where the store has no `put_nondurable`.

    Raises:
        FileExistsAlreadyError: With `if_absent`, if it exists already.
        StorageError: It cannot be written.
    """
    if isinstance(store, NondurableStore):
        await store.put_nondurable(path, data, if_absent=if_absent)
    else:
        await store.put(path, data, if_absent=if_absent)
