"""Folders that match a pattern, in a store where only a listing shows which folders exist."""

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

MAX_REQUESTS = 10_000
"""Per search. A pattern that needs more is broader than intended."""

_AT_ONCE = 16
_WILDCARD = re.compile(r"[*?\[]")


def has_wildcard(text: str) -> bool:
    """Return whether `*`, `?` or `[` is in a part of a pattern."""
    return _WILDCARD.search(text) is not None


class FolderPattern:
    """A pattern such as `bucket/lake/*/orders`, matched level by level, no deeper than it goes.

    Wildcards match within one level. As in a shell, `*` matches no name that begins with a dot.
    Each level is listed once, however many searches use it.
    """

    def __init__(
        self, store: ListsFolders, pattern: str, on_request: Callable[[], None] | None = None
    ) -> None:
        """Initialize; the first part of the pattern is literal.

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
        """Return the folders that match and contain a folder with one of the names, sorted.

        Takes one listing for each folder above a wildcard, and one for each match, limited to names
        with the same first character, because a table's folder may have very many others.

        Args:
            known: Folders that contain one if they exist: where a listing shows that they exist,
                they are not listed themselves.

        Raises:
            StorageError: A request failed.
            ConfigError: It takes more than `MAX_REQUESTS`.
        """
        levels = self._pattern.split("/")
        folders = await self._matching(levels)
        there = set(known) if has_wildcard(levels[-1]) else set()
        requested = [folder for folder in folders if folder not in there]
        holds = await self._each(partial(self._holds, parts=parts), requested)
        there |= {folder for folder, is_held in zip(requested, holds, strict=True) if is_held}
        return sorted(folder for folder in folders if folder in there)

    async def shown_by_siblings(
        self, store: ObjectStore, folder_of: Callable[[str], str | None]
    ) -> list[str]:
        """Return the folders that match and that a file in their parent folder names, sorted.

        Takes one listing for each folder above a wildcard, and one for each that may contain such
        files.

        Args:
            store: The same store, for files.
            folder_of: Returns the folder that a file's name denotes; None for other files.

        Raises:
            As `holding`.
        """
        *above, last = self._pattern.split("/")
        matches = re.compile(translate(last)).match

        async def list_shown(folder: str) -> list[str]:
            self._count()
            names = [folder_of(file.name) async for file in store.list_from(folder)]
            return [f"{folder}/{name}" for name in names if name is not None and matches(name)]

        found = await self._each(list_shown, await self._matching(above)) if above else []
        return sorted({name for names in found for name in names})

    async def _matching(self, levels: Sequence[str]) -> list[str]:
        """Return the folders that match the levels of a pattern, with any content."""
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
        """Call `ask` for each folder, with limited concurrency; return the results in order."""

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
        if self._requests > MAX_REQUESTS:
            raise ConfigError(
                f"Searching for {self._pattern} takes more than {MAX_REQUESTS:,} requests,"
                " because there are too many other folders and files.",
                remedy="Name more of the path in the pattern, or name the tables.",
            )
        if self._on_request is not None:
            self._on_request()
