"""The past of tables for the page, in a bucket: one small file each, for the eye only."""

from __future__ import annotations

import asyncio
import errno
import json

from tailerd.errors import StorageError
from tailerd.storage.base import ObjectStore
from tailerd.telemetry.history_store import LARGEST_FILE_BYTES


class BucketHistory:
    """Files of a folder of an object store; used in threads without a loop."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder

    def load(self, name: str) -> object | None:
        """Return what was saved of a table; None where there is nothing that can be read."""
        try:
            body = asyncio.run(self._store.get(self._path(name), 0, LARGEST_FILE_BYTES + 1))
            loaded: object = None if len(body) > LARGEST_FILE_BYTES else json.loads(body)
        except (StorageError, ValueError, RecursionError):
            return None
        return loaded

    def save(self, name: str, history: dict[str, object]) -> None:
        """Write a table's past: all of it or nothing.

        Raises:
            OSError: The bucket cannot be written.
        """
        path = self._path(name)
        try:
            asyncio.run(self._store.put(path, json.dumps(history, separators=(",", ":")).encode()))
        except StorageError as error:
            raise OSError(errno.EIO, str(error), f"s3://{path}") from error

    def prune(self) -> None:
        """Nothing: a listing each minute costs more than old files do."""

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"
