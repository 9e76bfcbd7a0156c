"""The history of tables for the page, which is only displayed: one small file for each table.

A file is named after its table and the token of its writer. The greatest token is current, so a
daemon that lost the state changes nothing. A save is one request and no fsync: after a power
failure a file may be torn, and it is ignored then.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterable

from tailerd.errors import StorageError
from tailerd.pipeline_names import file_name, pipeline_of
from tailerd.state.base import StateFiles
from tailerd.storage.base import FileMeta, delete_all, put_nondurable

LARGEST_FILE_BYTES = 2 * 1024 * 1024
MAX_FILES = 2000
_CALLS_PER_LISTING = 60
"""An hour: a listing is a billed request."""

_SUFFIX = ".json"
_Found = dict[str, list[tuple[int, FileMeta]]]
"""The files of each table with their tokens, the greatest first."""


class History:
    """The histories of a state; used in threads without an event loop."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._folder = f"{files.root}/history"
        self._calls = 0
        # The current file of each table; None before the first listing.
        self._paths: dict[str, str] | None = None

    def load(self, name: str) -> object | None:
        """Return the saved history of a table; None if there is none that can be read."""
        try:
            return asyncio.run(self._load(name))
        except (StorageError, ValueError, RecursionError):
            return None

    async def _load(self, name: str) -> object | None:
        if self._paths is None:
            found = await self._list()
            self._paths = {name: files[0][1].path for name, files in found.items()}
        path = self._paths.get(name)
        if path is None:
            return None
        body = await self._files.store.get(path, 0, LARGEST_FILE_BYTES + 1)
        if len(body) > LARGEST_FILE_BYTES:
            return None
        loaded: object = json.loads(body)
        token = self._files.token
        if token is not None and path != self._path(name, token):
            # A former owner may still write its own file.
            await self._put(name, token, body)
        return loaded

    def save(self, histories: Iterable[tuple[str, dict[str, object]]]) -> None:
        """Write each table's history atomically, if this process still owns the state.

        Raises:
            OSError: One cannot be written; those after it are not.
        """
        asyncio.run(self._save(histories))

    async def _save(self, histories: Iterable[tuple[str, dict[str, object]]]) -> None:
        for name, history in histories:
            token = self._files.token
            if token is None:
                return
            try:
                body = json.dumps(history, separators=(",", ":")).encode()
                await self._put(name, token, body)
            except StorageError as error:
                location = self._files.store.format_url(self._path(name, token))
                raise OSError(errno.EIO, str(error), location) from error

    async def _put(self, name: str, token: int, body: bytes) -> None:
        path = self._path(name, token)
        await put_nondurable(self._files.store, path, body, if_absent=False)
        if self._paths is not None:
            self._paths[name] = path

    def _path(self, name: str, token: int) -> str:
        return f"{self._folder}/{file_name(name)}.{token}{_SUFFIX}"

    def prune(self) -> None:
        """Remove superseded files and the oldest of more than `MAX_FILES`; once an hour."""
        self._calls += 1
        if self._calls % _CALLS_PER_LISTING != 1 or self._files.token is None:
            return
        try:
            asyncio.run(self._prune())
        except StorageError:
            # Retried at a later call.
            return

    async def _prune(self) -> None:
        found = await self._list()
        current = sorted((files[0][1] for files in found.values()), key=lambda file: file.mtime_ms)
        old = [file for files in found.values() for _, file in files[1:]]
        old += current[: max(0, len(current) - MAX_FILES)]
        await delete_all(self._files.store, [file.path for file in old])

    async def _list(self) -> _Found:
        found: _Found = {}
        async for file in self._files.store.list_from(self._folder):
            name, _, token = file.name.removesuffix(_SUFFIX).rpartition(".")
            if file.name.endswith(_SUFFIX) and name and token.isdecimal():
                found.setdefault(pipeline_of(name), []).append((int(token), file))
        for files in found.values():
            files.sort(key=lambda each: each[0], reverse=True)
        return found
