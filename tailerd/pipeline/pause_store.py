"""Stores which pipelines are paused: one empty file each, so that a pause survives a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from tailerd.errors import AccessDeniedError, StorageError
from tailerd.private_files import make_private_folder, write_private
from tailerd.storage.base import ObjectStore
from tailerd.storage.posix_files import sync_folder


class Pauses(Protocol):
    """Stores which pipelines are paused. `is_paused` returns at once; the others block."""

    def is_paused(self, pipeline: str) -> bool:
        """Return whether a pipeline is paused."""
        ...

    def pause(self, pipeline: str) -> None:
        """Save durably that a pipeline is paused; raises `StorageError`."""
        ...

    def release(self, pipeline: str) -> None:
        """Delete the mark of a paused pipeline; raises `StorageError`."""
        ...


class BucketPauses:
    """Files of a folder of an object store, listed once: one daemon writes them."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._names: set[str] = set()

    async def look(self) -> None:
        """Read which pipelines are paused, once the state is held.

        Raises:
            StorageError: The bucket cannot be listed.
        """
        self._names = {file.name async for file in self._store.list_from(self._folder)}

    def is_paused(self, pipeline: str) -> bool:
        """Return whether a pipeline is paused."""
        return pipeline in self._names

    def pause(self, pipeline: str) -> None:
        """Save durably that a pipeline is paused; in a thread without an event loop.

        Raises:
            StorageError: The bucket cannot be written.
        """
        asyncio.run(self._store.put(f"{self._folder}/{pipeline}", b""))
        self._names.add(pipeline)

    def release(self, pipeline: str) -> None:
        """Delete the mark of a paused pipeline; in a thread without an event loop.

        Raises:
            StorageError: The bucket cannot be written.
        """
        asyncio.run(self._store.delete(f"{self._folder}/{pipeline}"))
        self._names.discard(pipeline)


class PauseStore:
    """Files of a folder, named after the pipelines. Blocking, small and rare."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def is_paused(self, pipeline: str) -> bool:
        """Return whether a pipeline is paused."""
        return (self._folder / pipeline).exists()

    def pause(self, pipeline: str) -> None:
        """Save durably that a pipeline is paused.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            make_private_folder(self._folder)
            write_private(self._folder / pipeline, b"")
            sync_folder(self._folder)
        except OSError as error:
            raise _refused(self._folder, error) from error

    def release(self, pipeline: str) -> None:
        """Delete the mark of a paused pipeline; do nothing if there is none.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            (self._folder / pipeline).unlink(missing_ok=True)
            if self._folder.exists():
                sync_folder(self._folder)
        except OSError as error:
            raise _refused(self._folder, error) from error


def _refused(folder: Path, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"The folder of paused pipelines {folder} cannot be written: {error.strerror}.",
        remedy="Free space, or give this user the right to it.",
    )
