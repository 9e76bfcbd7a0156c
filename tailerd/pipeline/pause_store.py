"""Stores which pipelines are paused, so that a pause survives a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Protocol

from tailerd.errors import AccessDeniedError, StorageError
from tailerd.pipeline.fenced_files import FencedFile
from tailerd.private_files import make_private_folder, write_private
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
    """The names of all paused pipelines in one file of an object store, read once."""

    def __init__(self, file: FencedFile) -> None:
        self._file = file
        self._names: frozenset[str] = frozenset()

    async def look(self) -> None:
        """Read which pipelines are paused, once the state is held.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be read or written.
        """
        body = await self._file.load()
        if body is None:
            # From now on a daemon that lost the state cannot write the first file.
            body = b"[]"
            await self._file.save(body)
        try:
            self._names = frozenset(map(str, json.loads(body)))
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(
                f"The list of paused pipelines in {self._file.url} is damaged: {error!r}.",
                remedy="Delete it; then no pipeline is paused.",
            ) from error

    def is_paused(self, pipeline: str) -> bool:
        """Return whether a pipeline is paused."""
        return pipeline in self._names

    def pause(self, pipeline: str) -> None:
        """Save durably that a pipeline is paused; in a thread without an event loop.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be written.
        """
        self._save(self._names | {pipeline})

    def release(self, pipeline: str) -> None:
        """Delete the mark of a paused pipeline; in a thread without an event loop.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be written.
        """
        self._save(self._names - {pipeline})

    def _save(self, names: frozenset[str]) -> None:
        asyncio.run(self._file.save(json.dumps(sorted(names)).encode()))
        self._names = names


class PauseStore:
    """Empty files of a folder, named after the pipelines. Blocking, small and rare."""

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
