"""Lists and reads the commits of an array from its folder, without TileDB's library."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from tailerd.errors import (
    FileMissingError,
    LogChangedError,
    NotATableError,
    UnsupportedFeatureError,
)
from tailerd.formats.tiledb.protocol.commits import (
    Commits,
    ConsolidatedFile,
    DeleteRecord,
    find_commits,
    read_consolidated,
    read_lines,
)
from tailerd.formats.tiledb.protocol.names import (
    COMMITS,
    FRAGMENTS,
    GROUP,
    GROUP_MARKS,
    OLD_FRAGMENT_METADATA,
    OLD_SCHEMA,
    SCHEMA,
    CommitKind,
    TimedName,
    commit_file,
    timed_name,
)
from tailerd.formats.tiledb.protocol.timeline import Timeline
from tailerd.formats.tiledb.scan import StoredDelete
from tailerd.remedies import RESTART
from tailerd.storage.base import FileMeta, ListsFolders, ObjectStore

_CELL_TIMES = "t.tdb"
"""File of a merged fragment with the time at which each of its cells was written."""
_OLD_LAYOUT_BEFORE = 12
_COMMITTED_BY_FILE = 5
_AT_ONCE = 32


_LISTINGS = 10
"""Attempts to list commits while others merge them."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """Paths of commit files by name, and committed fragments of old formats."""

    paths: dict[str, str]
    fragments: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*sorted(self.paths), *sorted(self.fragments))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaName:
    """A schema of an array: when it was created, and what distinguishes it from others."""

    time_ms: int
    identity: str


class ArrayLog:
    """Lists one array's commits; immutable files are read once.

    Args:
        store, root: Where the array is.
        name: Its location, for errors.
    """

    def __init__(self, store: ObjectStore, root: str, name: str) -> None:
        self._store = store
        self._root = root
        self._name = name
        self._contents: dict[str, bytes] = {}
        self._has_times: dict[str, bool] = {}
        self._committed: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._is_old: bool | None = None
        self._listed: tuple[str, ...] | None = None
        self._commits = Commits(fragments=frozenset())
        self.schemas: tuple[SchemaName, ...] = ()
        """Schemas of the array, oldest first."""

    async def refresh(self, now_ms: int) -> Timeline:
        """Return the current commits.

        Raises:
            NotATableError: There is no array.
            TableError, StorageError: It cannot be read.
        """
        listing = await self._list()
        if listing.names != self._listed or not self.schemas:
            self.schemas = await self._schemas()
            self._commits, self._listed = await self._settle(listing)
        replacing = self._commits.replacing
        timed = {each.text for each in replacing if await self._has_cell_times(each)}
        return Timeline.from_commits(self._commits, timed, now_ms)

    async def _list(self) -> _Listing:
        files = [file async for file in self._store.list_from(f"{self._root}/{COMMITS}")]
        whole = [each for each in files if each.size_bytes or not _has_content(each.name)]
        paths = {each.name: each.path for each in whole}
        fragments: list[str] = []
        if self._is_old is not False:
            old, fragments = await self._old_layout(is_empty=not files)
            paths |= {each.name: each.path for each in old}
        return _Listing(paths, tuple(fragments))

    async def _settle(self, listing: _Listing) -> tuple[Commits, tuple[str, ...]]:
        """Return the commits of a listing, and its names; list again until it can be trusted.

        Maintenance merges commit files and deletes them, also while they are listed and read: then
        commits seem to be gone. A listing is whole if it has all files of the last one, or if a
        second listing has all of its files and no other list of commits.
        """
        known = self._listed
        for _ in range(_LISTINGS):
            commits = await self._read(listing)
            names = listing.names
            if commits is not None and known is not None and set(known) <= set(names):
                return commits, names
            known, listing = names, await self._list()
            is_whole = set(filter(_has_list, listing.names)) <= set(names) <= set(listing.names)
            if commits is not None and is_whole:
                return commits, names
        raise LogChangedError(
            f"Commit files of the array {self._name} changed each time they were listed.",
            remedy="A daemon retries automatically; let maintenance of the array run less often.",
            path=self._name,
        )

    async def _read(self, listing: _Listing) -> Commits | None:
        """Read files that list commits; None if one was removed meanwhile."""
        paths = listing.paths
        consolidated: list[ConsolidatedFile] = []
        ignored: set[str] = set()
        vacuums: dict[str, Sequence[str]] = {}
        requested = [name for name in paths if _has_list(name)]
        await self._load([paths[name] for name in requested])
        if not self._contents.keys() >= {paths[name] for name in requested}:
            return None
        for name in requested:
            content = self._contents[paths[name]]
            known = commit_file(name)
            if known is None:
                continue
            timed, kind = known
            if kind is CommitKind.CONSOLIDATED:
                consolidated.append(read_consolidated(content, name))
            elif kind is CommitKind.IGNORED:
                ignored.update(read_lines(content))
            elif kind is CommitKind.VACUUM:
                vacuums[timed.text] = read_lines(content)
        return find_commits(
            paths,
            consolidated=consolidated,
            ignored=ignored,
            to_vacuum=vacuums,
            fragments=listing.fragments,
        )

    async def _load(self, paths: Sequence[str]) -> None:
        new = [path for path in paths if path not in self._contents]
        self._contents = {p: c for p, c in self._contents.items() if p in set(paths)}
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            for path, content in zip(
                some, await asyncio.gather(*map(self._get, some)), strict=False
            ):
                if content is not None:
                    self._contents[path] = content

    async def _get(self, path: str) -> bytes | None:
        try:
            return await self._store.get(path)
        except FileMissingError:
            return None

    async def _old_layout(self, *, is_empty: bool) -> tuple[list[FileMeta], list[str]]:
        """Return commit files and committed fragments in the top folder (formats before 12)."""
        files = [file async for file in self._store.list_from(self._root)]
        commits = [each for each in files if commit_file(each.name) is not None]
        is_oldest = any(each.name == OLD_SCHEMA for each in files)
        if self._is_old is None and not is_empty:
            self._is_old = is_oldest or bool(commits)
        fragments = []
        if is_oldest:
            for name in await self.folders():
                timed = timed_name(name)
                is_oldest_form = timed is not None and _version(name) < _COMMITTED_BY_FILE
                if is_oldest_form and await self._is_committed(name):
                    fragments.append(name)
        return commits, fragments

    async def _is_committed(self, fragment: str) -> bool:
        if fragment in self._committed:
            return True
        if not await self._exists(f"{self._root}/{fragment}/{OLD_FRAGMENT_METADATA}"):
            return False
        self._committed.add(fragment)
        return True

    async def folders(self) -> list[str]:
        """Return the names of the folders directly in the array's or group's own."""
        if self._store.is_local_folder:
            return await asyncio.to_thread(local_folders, self._root)
        if isinstance(self._store, ListsFolders):
            return [name async for name in self._store.list_folders(self._root)]
        return []

    async def _schemas(self) -> tuple[SchemaName, ...]:
        found = []
        async for file in self._store.list_from(f"{self._root}/{SCHEMA}"):
            timed = timed_name(file.name)
            if timed is not None:
                found.append(SchemaName(time_ms=timed.first_ms, identity=timed.uuid))
        if found:
            return tuple(sorted(found, key=lambda each: (each.time_ms, each.identity)))
        content = await self._get(f"{self._root}/{OLD_SCHEMA}")
        if content is None:
            raise await self._not_an_array()
        return (SchemaName(time_ms=0, identity=xxhash.xxh3_128_hexdigest(content)),)

    async def _not_an_array(self) -> NotATableError | UnsupportedFeatureError:
        if await is_group(self._store, self._root):
            return await refused_group(self._store, self._root, self._name)
        return NotATableError(
            f"There is no TileDB array at {self._name}: no folder {SCHEMA} and no file"
            f" {OLD_SCHEMA}.",
            remedy="Check the path.",
        )

    def fragment_folder(self, name: str) -> str:
        """Return the folder of a fragment's files."""
        if _version(name) < _OLD_LAYOUT_BEFORE:
            return f"{self._root}/{name}"
        return f"{self._root}/{FRAGMENTS}/{name}"

    async def _has_cell_times(self, fragment: TimedName) -> bool:
        """Return whether a merged fragment kept the times of its cells."""
        found = self._has_times.get(fragment.text)
        if found is None:
            folder = self.fragment_folder(fragment.text)
            found = await self._exists(f"{folder}/{_CELL_TIMES}")
            self._has_times[fragment.text] = found
        return found

    async def _exists(self, path: str) -> bool:
        try:
            await self._store.head(path)
        except FileMissingError:
            return False
        return True

    @property
    def num_files(self) -> int:
        """Number of files that list commits, as of the last poll."""
        return len(self._listed or ())

    async def fragment_bytes(self, fragments: Sequence[TimedName]) -> int:
        """Return the total bytes of fragments' files; 0 for a missing one."""
        return sum(await self.fragment_sizes(fragments))

    async def fragment_sizes(self, fragments: Sequence[TimedName]) -> list[int]:
        """Return the bytes of each fragment's files; 0 for a missing one."""
        new = [each.text for each in fragments if each.text not in self._sizes]
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            sizes = await asyncio.gather(*map(self._measure_fragment, some))
            self._sizes |= dict(zip(some, sizes, strict=True))
        return [self._sizes[each.text] for each in fragments]

    async def _measure_fragment(self, fragment: str) -> int:
        folder = self.fragment_folder(fragment)
        return sum([file.size_bytes async for file in self._store.list_from(folder)])

    async def read_deletes(
        self, deletes: Sequence[tuple[TimedName, DeleteRecord]]
    ) -> tuple[StoredDelete, ...]:
        """Return deletes with their conditions.

        Raises:
            FileMissingError, StorageError: One cannot be read.
        """
        contents = await asyncio.gather(*(self._read_condition(record) for _, record in deletes))
        return tuple(
            StoredDelete(f"{name.text}{CommitKind.DELETE.value}", content)
            for (name, _), content in zip(deletes, contents, strict=True)
        )

    async def _read_condition(self, record: DeleteRecord) -> bytes:
        path = f"{self._root}/{COMMITS}/{record.file}"
        return await self._store.get(path, record.start, record.length)


def _has_content(name: str) -> bool:
    """Return whether a commit file has content, so that an empty one is still being written."""
    return name.endswith((CommitKind.DELETE.value, CommitKind.CONSOLIDATED.value))


def _has_list(name: str) -> bool:
    known = commit_file(name)
    lists = (CommitKind.CONSOLIDATED, CommitKind.IGNORED, CommitKind.VACUUM)
    return known is not None and known[1] in lists


def _version(name: str) -> int:
    """Return the format version in a fragment's name; 1 if it has none."""
    last = name.rpartition("_")[2]
    timed = timed_name(name)
    is_said = timed is not None and name.startswith(f"__{timed.first_ms}_{timed.last_ms}_")
    return int(last) if is_said and len(last) < 32 and last.isdigit() else 1


def local_folders(path: str) -> list[str]:
    """Return the names of the folders directly in a local folder; blocking."""
    try:
        with os.scandir(path) as entries:
            return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return []


async def is_array(store: ObjectStore, root: str) -> bool:
    """Return whether there is an array at `root`, with one or two requests."""
    async for _ in store.list_from(f"{root}/{SCHEMA}"):
        return True
    return await _is_file(store, f"{root}/{OLD_SCHEMA}")


async def is_group(store: ObjectStore, root: str) -> bool:
    """Return whether there is a group at `root`."""
    for mark in GROUP_MARKS:
        if await _is_file(store, f"{root}/{mark}"):
            return True
    async for _ in store.list_from(f"{root}/{GROUP}"):
        return True
    return False


async def _is_file(store: ObjectStore, path: str) -> bool:
    try:
        await store.head(path)
    except FileMissingError:
        return False
    return True


async def arrays_in(store: ObjectStore, root: str) -> list[str]:
    """Return the folders of the arrays directly in a group."""
    folders = await ArrayLog(store, root, root).folders()
    paths = [f"{root}/{name}" for name in folders if not name.startswith("__")]
    found = await asyncio.gather(*(is_array(store, path) for path in paths))
    return [path for path, is_there in zip(paths, found, strict=True) if is_there]


async def refused_group(store: ObjectStore, root: str, name: str) -> UnsupportedFeatureError:
    """Return the error for a group, which lists its arrays."""
    arrays = await arrays_in(store, root)
    shown = ", ".join(arrays[:10]) + (f" and {len(arrays) - 10} more" if len(arrays) > 10 else "")
    return UnsupportedFeatureError(
        f"{name} is a TileDB group, not an array. Arrays in it: {shown or 'none'}.",
        remedy="Name one of its arrays; `discover` with the group as its path reads all of them.",
        path=name,
    )


def commits_changed(location: str) -> LogChangedError:
    """Return the error for a commit that appeared before the end of a planned delivery."""
    return LogChangedError(
        f"An earlier commit of the array {location} appeared while the rows of later ones were"
        " planned or read.",
        remedy=f"A daemon retries automatically, with that commit. If the error stays, {RESTART}.",
        path=location,
    )
