"""Saved offsets as files in the state folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import AccessDeniedError, StorageError
from tailerd.private_files import make_private_folder, open_private, write_private
from tailerd.storage.posix_files import sync_folder
from tailerd.threads import in_thread


class FileOffsetStore:
    """One JSON file for each pipeline, replaced atomically; the previous one is kept alongside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Read the pipeline's file.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
            StorageError: It cannot be read.
        """
        return await asyncio.to_thread(self._load, pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Replace the pipeline's file.

        Raises:
            StorageError: The folder cannot be written; what was saved before is still there.
        """
        # Waits when cancelled: an abandoned save would run concurrently with the next one.
        await in_thread(self._save, pipeline, saved)

    def path(self, pipeline: str) -> Path:
        """Return the file of a pipeline."""
        return self._folder / f"{pipeline}.json"

    def _load(self, pipeline: str) -> SavedOffset | None:
        path = self.path(pipeline)
        try:
            return _parse(path, path.read_bytes(), pipeline)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(f"The offset file {path} cannot be read", error) from error

    def _save(self, pipeline: str, saved: SavedOffset) -> None:
        path = self.path(pipeline)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            make_private_folder(self._folder)
            with open_private(temporary, "wb") as file:
                file.write(saved.to_json().encode())
                file.flush()
                os.fsync(file.fileno())
            _keep_previous(path)
            temporary.replace(path)
            sync_folder(self._folder)
        except OSError as error:
            raise _refused(f"The offset of {pipeline} cannot be saved in {path}", error) from error


def _parse(path: Path, text: bytes, pipeline: str) -> SavedOffset:
    fix = (
        f"Reset it with `tailerd offsets reset {pipeline} --to ...`, or restore"
        f" {path.name}.previous."
    )
    return SavedOffset.from_json(text, place=f"The offset file {path}", fix=fix)


def _refused(what: str, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"{what}: {error.strerror}.", remedy="Free space, or give this user the right to it."
    )


def _keep_previous(path: Path) -> None:
    """Keep the file that is about to be replaced, so that an operator can restore it."""
    if path.exists():
        temporary = path.with_name(f".{path.name}.previous.tmp")
        write_private(temporary, path.read_bytes())
        temporary.replace(path.with_name(f"{path.name}.previous"))
