"""Finds the tables below a location, for which `tailerd init` writes a configuration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailerd.errors import NotATableError
from tailerd.formats.detect import table_formats
from tailerd.storage.base import ListsFolders, ObjectStore
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table

DEPTH = 3
"""Levels below the location that are searched: catalog, database, table."""

MAX_FOLDERS = 5_000
"""Folders that one search visits; a lake with many tables should use patterns (`discover`)."""

_AT_ONCE = 16
_HIDDEN = (".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table.

    Attributes:
        location: Path or URL, below the location that was searched.
        name: The last parts of the location, unique among the tables found.
        format: Name of its format.
    """

    location: str
    name: str
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTables:
    """The result of a search.

    Attributes:
        tables: In the order of their locations.
        is_complete: Whether all folders were searched; the search is bounded.
    """

    tables: Sequence[FoundTable]
    is_complete: bool


async def find_tables(location: str, stores: Stores, *, depth: int = DEPTH) -> FoundTables:
    """Return the tables at a location and below it; a table's own folders are not searched.

    Args:
        location: A folder, or the URL of a prefix in a bucket.
        depth: Levels of folders below the location.

    Raises:
        NotATableError: The location is not a folder.
        ConfigError: No store serves it.
        StorageError: It cannot be read.
    """
    store, root = stores.locate(location)
    if store.is_local_folder and not await asyncio.to_thread(Path(root).is_dir):
        raise NotATableError(
            f"There is no folder {location}.", remedy="Check the path for a spelling mistake."
        )
    search = _Search(store, stores)
    found = await search.below(root, depth)
    locations = {path: store.format_url(path) for path, _ in found}
    if store.is_local_folder:
        locations = {path: path for path, _ in found}
    names = _names([path for path, _ in found])
    return FoundTables(
        tables=[
            FoundTable(location=locations[path], name=names[path], format=name)
            for path, name in found
        ],
        is_complete=search.is_complete,
    )


class _Search:
    def __init__(self, store: ObjectStore, stores: Stores) -> None:
        self._store, self._stores = store, stores
        self._formats = table_formats()
        self._running = asyncio.Semaphore(_AT_ONCE)
        self._listed = 0
        self.is_complete = True

    async def below(self, root: str, depth: int) -> list[tuple[str, str]]:
        """Return (path, format) of each table, ordered by path, level by level."""
        found: list[tuple[str, str]] = []
        level = [root]
        for remaining in range(depth, -1, -1):
            level = self._list_admitted(level)
            names = await asyncio.gather(*map(self._detect_format, level))
            found += [(path, name) for path, name in zip(level, names, strict=True) if name]
            if not remaining:
                break
            others = [path for path, name in zip(level, names, strict=True) if not name]
            level = [
                path
                for paths in await asyncio.gather(*map(self._folders, others))
                for path in paths
            ]
        return sorted(found)

    def _list_admitted(self, level: list[str]) -> list[str]:
        left = MAX_FOLDERS - self._listed
        self.is_complete = self.is_complete and len(level) <= left
        self._listed += min(len(level), left)
        return level[:left]

    async def _detect_format(self, path: str) -> str:
        location = locate_table(self._store.format_url(path), stores=self._stores)
        async with self._running:
            for each in self._formats:
                if await each.detect(location):
                    is_group = await each.is_group(location)
                    return "" if is_group else each.name
        return ""

    async def _folders(self, path: str) -> list[str]:
        async with self._running:
            if self._store.is_local_folder:
                names = await asyncio.to_thread(_local_folders, path)
            elif isinstance(self._store, ListsFolders):
                names = [name async for name in self._store.list_folders(path)]
            else:
                names = []
        return [f"{path.rstrip('/')}/{name}" for name in names if not name.startswith(_HIDDEN)]


def _local_folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except PermissionError:
        # Other users' folders, such as lost+found, contain no table of this user.
        return []


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Return a name for each path: its last part, and as many before it as make it unique."""
    return {path: next(_unique(path, paths)) for path in paths}


def _unique(path: str, paths: Sequence[str]) -> Iterator[str]:
    """Yield the names of a path that no other path has, the shortest first; its longest last."""
    longest = len(_parts(path))
    for count in range(1, longest):
        name = _ends(path, count)
        if not any(_ends(other, count) == name for other in paths if other != path):
            yield name
    yield _ends(path, longest)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _ends(path: str, count: int) -> str:
    return _as_name("-".join(_parts(path)[-count:]))


def _as_name(text: str) -> str:
    """Return a valid table name for a configuration: letters, digits, `.`, `_`, `-`."""
    plain = "".join(
        each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in text
    )
    return plain.lstrip("._-")[:100] or "table"
