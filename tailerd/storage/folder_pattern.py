"""Folders that match a pattern, in a store where only listing tells what folders there are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from fnmatch import translate
from functools import partial
from typing import TypeVar

from tailerd.errors import ConfigError
from tailerd.storage.base import ListsFolders, ObjectStore

T = TypeVar("T")

MOST_REQUESTS = 10_000
"""Of one look. A pattern that needs more finds what nobody meant."""

_AT_ONCE = 16
_WILDCARD = re.compile(r"[*?\[]")


def has_wildcard(text: str) -> bool:
    """Return whether `*`, `?` or `[` is in a part of a pattern."""
    return _WILDCARD.search(text) is not None


class FolderPattern:
    """A pattern such as `bucket/lake/*/orders`, matched level by level, no deeper than it goes.

    Wildcards match within one level. As in a shell `*` matches no name that begins with a dot. What
    a level has is listed once, whatever is then asked of the folders.
    """

    def __init__(
        self, store: ListsFolders, pattern: str, on_request: Callable[[], None] | None = None
    ) -> None:
        """Initialize; the first part of a pattern is taken literally.

        Args:
            on_request: Called before each request.
        """
        self._store = store
        self._pattern = pattern
        self._on_request = on_request
        self._requests = 0
        self._listed: dict[tuple[str, str], list[str]] = {}
        self._running = asyncio.Semaphore(_AT_ONCE)

    async def holding(self, parts: Collection[str], known: Collection[str] = ()) -> list[str]:
        """Return the folders that match and hold a folder of one of the names, sorted.

        A listing for each folder above a wildcard, and one of each that matches: of names with
        the same first character, as a table's folder may have very many others.

        Args:
            known: Folders that hold one, if they are there: where a listing shows that, no more is
                asked of them.

        Raises:
            StorageError: Of a request.
            ConfigError: It takes more than `MOST_REQUESTS`.
        """
        levels = self._pattern.split("/")
        folders = await self._matching(levels)
        there = set(known) if has_wildcard(levels[-1]) else set()
        asked = [folder for folder in folders if folder not in there]
        holds = await self._each(partial(self._holds, parts=parts), asked)
        there |= {folder for folder, is_held in zip(asked, holds, strict=True) if is_held}
        return sorted(folder for folder in folders if folder in there)

    async def shown_beside(
        self, store: ObjectStore, folder_of: Callable[[str], str | None]
    ) -> list[str]:
        """Return the folders that match and that a file beside them shows, sorted.

        A listing for each folder above a wildcard, and one for each that may hold such files.

        Args:
            store: The same store, for files.
            folder_of: The name of the folder that a file's name shows; None for other files.

        Raises:
            As `holding`.
        """
        *above, last = self._pattern.split("/")
        matches = re.compile(translate(last)).match

        async def shown(folder: str) -> list[str]:
            self._count()
            names = [folder_of(file.name) async for file in store.list_from(folder)]
            return [f"{folder}/{name}" for name in names if name is not None and matches(name)]

        found = await self._each(shown, await self._matching(above)) if above else []
        return sorted({name for names in found for name in names})

    async def _matching(self, levels: Sequence[str]) -> list[str]:
        """Return the folders that match the levels of a pattern, whatever they hold."""
        first, *parts = levels
        folders = [first]
        for level in parts:
            if has_wildcard(level):
                found = await self._each(partial(self._below, level=level), folders)
                folders = [name for names in found for name in names]
            else:
                folders = [f"{folder}/{level}" for folder in folders]
        return folders

    async def _each(self, ask: Callable[[str], Awaitable[T]], folders: Sequence[str]) -> list[T]:
        """Ask of each folder, some at once; return the answers in order."""

        async def one(folder: str) -> T:
            async with self._running:
                return await ask(folder)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(folder)) for folder in folders]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [task.result() for task in tasks]

    async def _below(self, folder: str, level: str) -> list[str]:
        if (folder, level) not in self._listed:
            self._listed[folder, level] = await self._list(folder, level)
        return self._listed[folder, level]

    async def _list(self, folder: str, level: str) -> list[str]:
        matches = re.compile(translate(level)).match
        fixed = _WILDCARD.split(level, maxsplit=1)[0]
        return [
            f"{folder}/{name}"
            async for name in self._store.list_folders(folder, fixed, self._count)
            if name and matches(name) and (level.startswith(".") or not name.startswith("."))
        ]

    async def _holds(self, folder: str, parts: Collection[str]) -> bool:
        for begin in sorted({part[0] for part in parts}):
            names = self._store.list_folders(folder, begin, self._count)
            if any([name in parts async for name in names]):
                return True
        return False

    def _count(self) -> None:
        self._requests += 1
        if self._requests > MOST_REQUESTS:
            raise ConfigError(
                f"Looking for {self._pattern} takes more than {MOST_REQUESTS:,} requests, because"
                " there are too many other folders and files.",
                remedy="Name more of the path in the pattern, or name the tables.",
            )
        if self._on_request is not None:
            self._on_request()
