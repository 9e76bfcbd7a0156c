"""Files of a state in a bucket that only the daemon that holds the state can change.

Each writer uses the name `<folder>/<token of its lease>.json`; the file with the greatest token is
current. A daemon that takes the state over writes the current content under its own token when it
reads it. A daemon that lost its lease may still write, but only under its own, lower token, which
has no effect. Offsets need more (`bucket_offset_store.py`): their writer must also notice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailerd.errors import AccessDeniedError, BugError, FileMissingError, StorageError
from tailerd.storage.base import ObjectStore

Token = Callable[[], Awaitable[int | None]]
"""Returns the token of the held lease; None if the state is not held.

Raises `StateInUseError` if another process has taken the state over.
"""

_SUFFIX = ".json"
_ATTEMPTS = 10


class FencedFile:
    """One file, identified by its folder.

    Args:
        store, folder: Where.
        token: Of the lease that protects it.
    """

    def __init__(self, store: ObjectStore, folder: str, token: Token) -> None:
        self._store = store
        self._folder = folder
        self._token = token

    @property
    def url(self) -> str:
        """The folder of the file's versions, for messages."""
        return f"s3://{self._folder}"

    async def load(self) -> bytes | None:
        """Return the current content, None if there is none; take it over if the state is held.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be read or written.
        """
        mine = await self._token()
        for _ in range(_ATTEMPTS):
            newest = max(await self._tokens(), default=None)
            if newest is None:
                return None
            try:
                body = await self._store.get(self._path(newest))
            except FileMissingError:
                # Replaced since the listing.
                continue
            if mine is not None and mine != newest:
                await self.save(body)
            return body
        raise StorageError(f"{self.url} changes with every read: another process writes it.")

    async def save(self, body: bytes) -> None:
        """Replace the content.

        Raises:
            StateInUseError: Another process has taken the state over; nothing was saved.
            StorageError: The bucket cannot be written.
        """
        mine = await self._token()
        if mine is None:
            raise BugError(f"{self.url} was to be written without holding the state.")
        await self._store.put(self._path(mine), body)
        for token in await self._tokens():
            if token < mine:
                await self._forget(token)

    async def _forget(self, token: int) -> None:
        try:
            await self._store.delete(self._path(token))
        except AccessDeniedError:
            raise
        except StorageError:
            # The content is saved. The next save finds the old file too.
            return

    async def _tokens(self) -> list[int]:
        return [
            int(file.name.removesuffix(_SUFFIX))
            async for file in self._store.list_from(self._folder)
            if file.name.endswith(_SUFFIX) and file.name.removesuffix(_SUFFIX).isdecimal()
        ]

    def _path(self, token: int) -> str:
        return f"{self._folder}/{token:020}{_SUFFIX}"
