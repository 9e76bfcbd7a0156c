"""File events of this machine: through inotify on Linux, through watchfiles elsewhere.

Watchfiles gives an event within milliseconds too, but costs a thread that wakes every millisecond;
so one watcher serves many folders.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import watchfiles

from tailerd.storage.finished_files import FinishedFiles
from tailerd.watchers.base import Names, StorageEvent, Watcher, numbered_name
from tailerd.watchers.inotify import InotifyWatcher

_Identities = dict[str, tuple[int, int]]


class FileWatcher(Watcher, Protocol):
    """A watcher that knows how far it can be relied upon."""

    def covers(self, folder: str) -> bool:
        """Return whether every commit in `folder` gives an event at present."""
        ...


def watch_folders(
    folders: Sequence[str],
    *,
    names: Names | None = None,
    finished: FinishedFiles | None = None,
    on_unavailable: Callable[[str, str], None] | None = None,
) -> FileWatcher:
    """Return this system's watcher of file events for `_delta_log` folders.

    Args:
        folders: Absolute paths.
        names: How commits are named there.
        finished: Where files are noted whose writers have closed them, as far as that is known.
        on_unavailable: Told once (path, reason) when the system refuses to watch.
    """
    if sys.platform == "linux":
        return InotifyWatcher(
            folders, names=names, finished=finished, on_unavailable=on_unavailable
        )
    return LocalWatcher(folders, names=names, on_unavailable=on_unavailable)


class LocalWatcher:
    """Watches `_delta_log` folders of local tables.

    A folder that is not there is looked for again every `recheck_seconds`, and so is one that was
    deleted and made again: the kernel's watch follows the old one. Whatever is missed meanwhile is
    the poll watcher's to find.
    """

    def __init__(
        self,
        folders: Sequence[str],
        *,
        names: Names | None = None,
        recheck_seconds: float = 1.0,
        on_unavailable: Callable[[str, str], None] | None = None,
    ) -> None:
        """Watch these folders.

        Args:
            folders: Absolute paths.
            names: How commits are named there.
            recheck_seconds: Time between two looks for folders that came, went or were replaced.
            on_unavailable: Told once (path, reason) when the kernel refuses to watch.
        """
        self._by_real_path = {str(Path(folder).absolute()): folder for folder in folders}
        self._names = names or {}
        self._recheck_seconds = recheck_seconds
        self._on_unavailable = on_unavailable

    def covers(self, folder: str) -> bool:
        """Promise nothing: what these systems tell of is not known well enough."""
        return False

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield an event for each folder in which a commit file was made or replaced."""
        known: _Identities = {}
        while True:
            found = await asyncio.to_thread(self._identities)
            try:
                async with aclosing(self._watch(found, known)) as events:
                    async for folder in events:
                        yield StorageEvent(folder)
                known = found
            except (OSError, RuntimeError) as error:
                # Whatever the kernel refuses, polling finds the commits.
                self._report(error)
                await asyncio.sleep(self._recheck_seconds)

    async def _watch(self, folders: _Identities, known: _Identities) -> AsyncGenerator[str, None]:
        """Yield configured folders with new commits, until the folders on disk are others."""
        if not folders:
            await asyncio.sleep(self._recheck_seconds)
            return
        changes = watchfiles.awatch(
            *folders,
            watch_filter=self._is_commit,
            debounce=1,
            step=1,
            rust_timeout=int(self._recheck_seconds * 1000),
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        )
        fresh = [self._by_real_path[path] for path, _ in folders.items() - known.items()]
        for folder in fresh:
            # Commits may have come before anybody watched.
            yield folder
        next_check = time.monotonic() + self._recheck_seconds
        async with aclosing(changes) as batches:
            async for batch in batches:
                if not batch:
                    # And between that event and the kernel's first watch.
                    for folder in fresh:
                        yield folder
                    fresh = []
                for parent in {str(Path(path).parent) for _, path in batch}:
                    if parent in self._by_real_path:
                        yield self._by_real_path[parent]
                if time.monotonic() >= next_check:
                    if await asyncio.to_thread(self._identities) != folders:
                        return
                    next_check = time.monotonic() + self._recheck_seconds

    def _identities(self) -> _Identities:
        found: _Identities = {}
        for path in self._by_real_path:
            try:
                stat = Path(path).stat()
            except OSError:
                # Not there or not reachable now: looked for again, polling meanwhile.
                continue
            found[path] = (stat.st_dev, stat.st_ino)
        return found

    def _is_commit(self, change: watchfiles.Change, path: str) -> bool:
        place = Path(path)
        folder = self._by_real_path.get(str(place.parent), "")
        version_of = self._names.get(folder, numbered_name)
        return change is not watchfiles.Change.deleted and version_of(place.name) is not None

    def _report(self, error: Exception) -> None:
        if self._on_unavailable is not None:
            self._on_unavailable(", ".join(self._by_real_path)[:200], str(error))
            self._on_unavailable = None
