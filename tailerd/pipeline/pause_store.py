"""Which pipelines an operator holds: one empty file each, so that a restart holds them too."""

from __future__ import annotations

import os
from pathlib import Path

from tailerd.errors import AccessDeniedError, StorageError


class PauseStore:
    """Files of a folder, named as the pipelines are. Blocking, small and rare."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def is_paused(self, pipeline: str) -> bool:
        """Tell whether a pipeline is held."""
        return (self._folder / pipeline).exists()

    def hold(self, pipeline: str) -> None:
        """Remember durably that a pipeline is held.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / pipeline).touch()
            self._sync()
        except OSError as error:
            raise _refused(self._folder, error) from error

    def release(self, pipeline: str) -> None:
        """Forget that a pipeline is held; one that is not is released already.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            (self._folder / pipeline).unlink(missing_ok=True)
            if self._folder.exists():
                self._sync()
        except OSError as error:
            raise _refused(self._folder, error) from error

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refused(folder: Path, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"The folder of paused pipelines {folder} cannot be written: {error.strerror}.",
        hint="Free space, or give this user the right to it.",
    )
