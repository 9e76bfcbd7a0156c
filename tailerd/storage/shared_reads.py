"""Share files that one reader of a folder fetches with another reader in the same process.

A pipeline reads each new commit, and right afterwards the table's growth is counted from the same
commits. Files are assumed to be immutable. A result, found or missing, is valid for a minute and
for one read.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast
from weakref import WeakValueDictionary

from tailerd.errors import FileMissingError
from tailerd.storage.base import FileMeta, ObjectStore

KEEP_SECONDS = 60.0
MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 512

_Found = tuple[FileMeta, bytes]


class SharedReadCache:
    """Recently fetched files of one folder; bounded, the oldest are evicted first."""

    def __init__(self) -> None:
        """Start empty."""
        self._found: OrderedDict[str, tuple[float, _Found | None]] = OrderedDict()
        self._bytes = 0
        # Of files that a reader is fetching.
        self.pending: dict[str, asyncio.Future[None]] = {}
        # Start time, first name (exclusive), names found.
        self._listed: tuple[float, str, frozenset[str]] | None = None

    def note_listing(self, began: float, start_after: str, names: frozenset[str]) -> None:
        """Cache which names after `start_after` are in the folder."""
        self._listed = (began, start_after, names) if len(names) <= MAX_FILES else None

    def note(self, path: str, found: _Found | None) -> None:
        """Cache a whole file; None if it does not exist."""
        if found is not None:
            self.note_presence(path)
        self.take(path)
        self._found[path] = (time.monotonic(), found)
        self._bytes += _size(found)
        while self._bytes > MAX_BYTES or len(self._found) > MAX_FILES:
            _, (_, oldest) = self._found.popitem(last=False)
            self._bytes -= _size(oldest)

    def note_presence(self, path: str) -> None:
        """Drop the cached absence of a file that was just read."""
        known = self._found.get(path)
        if known is not None and known[1] is None:
            del self._found[path]
        if self._is_unlisted(path.rpartition("/")[2]):
            self._listed = None

    def take(self, path: str) -> tuple[_Found | None] | None:
        """Return and remove the cached result for a path; None where there is none or it is old."""
        known = self._found.pop(path, None)
        if known is None:
            return (None,) if self._is_unlisted(path.rpartition("/")[2]) else None
        at, found = known
        self._bytes -= _size(found)
        return (found,) if time.monotonic() - at < KEEP_SECONDS else None

    def peek(self, path: str, absent_seconds: float) -> tuple[_Found | None] | None:
        """Return the cached result for a path, which stays; None where there is none or it is old.

        Args:
            absent_seconds: How long a file that was missing counts as missing.
        """
        known = self._found.get(path)
        if known is None:
            return None
        at, found = known
        seconds = absent_seconds if found is None else KEEP_SECONDS
        return (found,) if time.monotonic() - at < seconds else None

    def _is_unlisted(self, name: str) -> bool:
        if self._listed is None:
            return False
        at, start_after, names = self._listed
        return name > start_after and name not in names and time.monotonic() - at < KEEP_SECONDS


def _size(found: _Found | None) -> int:
    return 0 if found is None else len(found[1])


class SharedReads:
    """The caches of one process, by folder; each exists as long as a reader uses it."""

    def __init__(self) -> None:
        """Start without folders."""
        self._folders: WeakValueDictionary[tuple[str, str], SharedReadCache] = WeakValueDictionary()

    def get(self, scheme: str, folder: str) -> SharedReadCache | None:
        """Return a folder's cache; None where no reader uses one."""
        return self._folders.get((scheme, folder))

    def join(self, scheme: str, folder: str) -> SharedReadCache:
        """Return a folder's cache; create it if there is none."""
        return self._folders.setdefault((scheme, folder), SharedReadCache())


class _Wrapped:
    """Forwards everything to a store, except the methods that use the cache."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        # Optional protocols are checked with `isinstance`, which since Python 3.12 ignores
        # `__getattr__`.
        for name in dir(inner):
            if not name.startswith("_") and not hasattr(type(self), name):
                found = getattr(inner, name)
                if callable(found):
                    setattr(self, name, found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CacheFiller(_Wrapped):
    def __init__(self, inner: ObjectStore, shared: SharedReads) -> None:
        super().__init__(inner)
        self._shared = shared

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        body = await self._inner.get(path, start, length)
        self._note_presence(path)
        return body

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        bodies = await self._inner.get_many(paths)
        for path in paths:
            self._note_presence(path)
        return bodies

    def _note_presence(self, path: str) -> None:
        cache = self._shared.get(self._inner.scheme, path.rpartition("/")[0])
        if cache is not None:
            cache.note_presence(path)

    async def fetch(self, path: str, start: int = 0, length: int | None = None) -> _Found:
        cache = self._shared.get(self._inner.scheme, path.rpartition("/")[0])
        try:
            found = await self._inner.fetch(path, start, length)
        except FileMissingError:
            if cache is not None:
                cache.note(path, None)
            raise
        if cache is not None and start == 0 and found[0].size_bytes == len(found[1]):
            cache.note(path, found)
        return found

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        cache = self._shared.get(self._inner.scheme, folder.rstrip("/"))
        began, names = time.monotonic(), set[str]()
        async for meta in self._inner.list_from(folder, start_after):
            if cache is not None:
                names.add(meta.name)
            yield meta
        if cache is not None:
            cache.note_listing(began, start_after, frozenset(names))


class _CacheSharer(_CacheFiller):
    """Uses and fills a cache, which lives as long as this."""

    def __init__(
        self,
        inner: ObjectStore,
        shared: SharedReads,
        cache: SharedReadCache,
        is_shared: Callable[[str], bool],
        absent_seconds: float,
    ) -> None:
        super().__init__(inner, shared)
        self._cache = cache
        self._is_shared = is_shared
        self._absent_seconds = absent_seconds

    async def fetch(self, path: str, start: int = 0, length: int | None = None) -> _Found:
        if not self._is_shared(path):
            return await super().fetch(path, start, length)
        pending = self._cache.pending
        if path in pending:
            # Another reader is fetching it just now.
            await asyncio.wait([pending[path]])
        if (known := self._cache.peek(path, self._absent_seconds)) is not None:
            return _part(path, known, start, length)
        pending[path] = done = asyncio.get_running_loop().create_future()
        try:
            return await super().fetch(path, start, length)
        finally:
            done.set_result(None)
            if pending.get(path) is done:
                del pending[path]

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        async for meta in super().list_from(folder, start_after):
            self._cache.note_presence(meta.path)
            yield meta


class _CacheReader(_Wrapped):
    def __init__(self, inner: ObjectStore, cache: SharedReadCache) -> None:
        super().__init__(inner)
        self._cache = cache

    async def fetch(self, path: str, start: int = 0, length: int | None = None) -> _Found:
        known = self._cache.take(path)
        if known is None:
            return await self._inner.fetch(path, start, length)
        return _part(path, known, start, length)


def _part(path: str, known: tuple[_Found | None], start: int, length: int | None) -> _Found:
    [found] = known
    if found is None:
        raise FileMissingError(f"{path} did not exist when last checked.")
    meta, body = found
    return meta, body if start == 0 and length is None else body[start:][:length]


def filling_cache(store: ObjectStore, shared: SharedReads) -> ObjectStore:
    """Return the store, wrapped so that its fetches fill the caches of other readers."""
    return cast(ObjectStore, _CacheFiller(store, shared))


def sharing_cache(
    store: ObjectStore,
    folder: str,
    shared: SharedReads,
    is_shared: Callable[[str], bool],
    absent_seconds: float,
) -> ObjectStore:
    """Return the store, wrapped so that several readers fetch each file of `folder` once.

    Args:
        is_shared: Whether a path is of a file that never changes.
        absent_seconds: How long a file that was missing counts as missing.
    """
    cache = shared.join(store.scheme, folder.rstrip("/"))
    return cast(ObjectStore, _CacheSharer(store, shared, cache, is_shared, absent_seconds))


def using_cache(store: ObjectStore, folder: str, shared: SharedReads) -> ObjectStore:
    """Return the store, wrapped to use others' recent fetches of `folder`."""
    cache = shared.join(store.scheme, folder.rstrip("/"))
    return cast(ObjectStore, _CacheReader(store, cache))
