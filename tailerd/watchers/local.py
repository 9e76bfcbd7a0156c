"""Local file events: through inotify on Linux, through watchfiles elsewhere.

Watchfiles also reports events within milliseconds, but needs a thread that wakes every millisecond,
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
    """A watcher that reports for which folders it is reliable."""

    def covers(self, folder: str) -> bool:
        """Return whether every commit in `folder` currently causes an event."""
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
        finished: Receives files that are known to have been closed by their writers.
        on_unavailable: Called once with (path, reason) if the system refuses to watch.
    """
    if sys.platform == "linux":
        return InotifyWatcher(
            folders, names=names, finished=finished, on_unavailable=on_unavailable
        )
    return LocalWatcher(folders, names=names, on_unavailable=on_unavailable)


class LocalWatcher:
    """Watches `_delta_log` folders of local tables.

    A missing folder is checked again every `recheck_seconds`, and so is one that may have been
    deleted and recreated: the kernel's watch stays on the old one. The poll watcher finds commits
    that are missed meanwhile.
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
            recheck_seconds: Time between two checks for created, deleted or replaced folders.
            on_unavailable: Called once with (path, reason) if the kernel refuses to watch.
        """
        self._by_real_path = {str(Path(folder).absolute()): folder for folder in folders}
        self._names = names or {}
        self._recheck_seconds = recheck_seconds
        self._on_unavailable = on_unavailable

    def covers(self, folder: str) -> bool:
        """Return False: the event guarantees of these systems are not known well enough."""
        return False

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield an event for each folder in which a commit file was created or replaced."""
        known: _Identities = {}
        while True:
            found = await asyncio.to_thread(self._identities)
            try:
                async with aclosing(self._watch(found, known)) as events:
                    async for folder in events:
                        yield StorageEvent(folder)
                known = found
            except (OSError, RuntimeError) as error:
                # If the kernel refuses to watch, polling finds the commits.
                self._report(error)
                await asyncio.sleep(self._recheck_seconds)

    async def _watch(self, folders: _Identities, known: _Identities) -> AsyncGenerator[str, None]:
        """Yield configured folders with new commits, until the folders on disk change."""
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
            # Commits may have been written before the watch started.
            yield folder
        next_check = time.monotonic() + self._recheck_seconds
        async with aclosing(changes) as batches:
            async for batch in batches:
                if not batch:
                    # Also between that event and the start of the kernel's watch.
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
                # Missing or unreachable now: checked again later, polled meanwhile.
                continue
            found[path] = (stat.st_dev, stat.st_ino)
        return found

    def _is_commit(self, change: watchfiles.Change, path: str) -> bool:
        location = Path(path)
        folder = self._by_real_path.get(str(location.parent), "")
        version_of = self._names.get(folder, numbered_name)
        return change is not watchfiles.Change.deleted and version_of(location.name) is not None

    def _report(self, error: Exception) -> None:
        if self._on_unavailable is not None:
            self._on_unavailable(", ".join(self._by_real_path)[:200], str(error))
            self._on_unavailable = None
