"""Keeps the history of tables for the page in a bucket: one small file each, only displayed."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable

from tailerd.errors import StorageError
from tailerd.storage.base import ObjectStore
from tailerd.storage.deletion import delete_all
from tailerd.telemetry.history_store import LARGEST_FILE_BYTES, MOST_FILES

_CALLS_A_LOOK = 60
"""An hour: a listing is a billed request."""


class BucketHistory:
    """Files of a folder of an object store; used in threads without an event loop.

    Args:
        store, folder: Where.
        is_held: Returns whether this process may write, as far as it knows without a request.
    """

    def __init__(self, store: ObjectStore, folder: str, is_held: Callable[[], bool]) -> None:
        self._store = store
        self._folder = folder
        self._is_held = is_held
        self._calls = 0

    def load(self, name: str) -> object | None:
        """Return the saved history of a table; None if there is none that can be read."""
        try:
            body = asyncio.run(self._store.get(self._path(name), 0, LARGEST_FILE_BYTES + 1))
            loaded: object = None if len(body) > LARGEST_FILE_BYTES else json.loads(body)
        except (StorageError, ValueError, RecursionError):
            return None
        return loaded

    def save(self, name: str, history: dict[str, object]) -> None:
        """Write a table's history atomically.

        Raises:
            OSError: The bucket cannot be written.
        """
        if not self._is_held():
            return
        path = self._path(name)
        try:
            asyncio.run(self._store.put(path, json.dumps(history, separators=(",", ":")).encode()))
        except StorageError as error:
            raise OSError(errno.EIO, str(error), f"s3://{path}") from error

    def prune(self) -> None:
        """Remove the oldest of more than `MOST_FILES`; only once in `_CALLS_A_LOOK` calls."""
        self._calls += 1
        if self._calls % _CALLS_A_LOOK != 1 or not self._is_held():
            return
        try:
            asyncio.run(self._prune())
        except StorageError:
            # Retried at a later call.
            return

    async def _prune(self) -> None:
        listed = self._store.list_from(self._folder)
        files = [file async for file in listed if file.name.endswith(".json")]
        files.sort(key=lambda file: file.mtime_ms)
        old = files[: max(0, len(files) - MOST_FILES)]
        await delete_all(self._store, [file.path for file in old])

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"
