"""Linux's inotify, without a thread: a commit is reported within a fraction of a millisecond.

The event loop waits on the inotify file descriptor, so a thousand idle folders cost nothing. Only a
periodic check for created, deleted or replaced folders runs in a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import os
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

from tailerd.storage.finished_files import FinishedFiles
from tailerd.storage.folder_identity import is_fast_local
from tailerd.watchers.base import Names, StorageEvent, numbered_name

_CLOSE_WRITE, _OPEN, _MOVED_TO, _CREATE = 0x8, 0x20, 0x80, 0x100
_DELETE_SELF, _MOVE_SELF, _UNMOUNT = 0x400, 0x800, 0x2000
_OVERFLOW, _IGNORED, _ONLY_FOLDERS = 0x4000, 0x8000, 0x1000000
_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_WANTED = _CLOSE_WRITE | _OPEN | _MOVED_TO | _CREATE | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS

_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
_RARELY = 5

_LIBC = ctypes.CDLL(None, use_errno=True)

_REASONS = {
    errno.ENOSPC: "the limit fs.inotify.max_user_watches is reached; raise it with sysctl",
    errno.EMFILE: "the limit fs.inotify.max_user_instances or that of open files is reached",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of checking one folder: its watch descriptor, or an errno."""

    folder: str
    watch: int
    error: int
    is_prompt: bool


class InotifyWatcher:
    """Watches local `_delta_log` folders.

    A missing folder is checked every `recheck_seconds`; an existing one, which may have been
    replaced, a fifth as often: the kernel's watch stays on the old one.
    """

    def __init__(
        self,
        folders: Sequence[str],
        *,
        names: Names | None = None,
        recheck_seconds: float = 1.0,
        finished: FinishedFiles | None = None,
        on_unavailable: Callable[[str, str], None] | None = None,
    ) -> None:
        """Watch these folders.

        Args:
            folders: Absolute paths.
            names: How commits are named there.
            recheck_seconds: Time between two checks for missing folders.
            finished: Receives files that their writers have closed.
            on_unavailable: Called once with (path, reason) if the kernel refuses to watch.
        """
        self._folders = tuple(dict.fromkeys(folders))
        self._names = names or {}
        self._recheck_seconds = recheck_seconds
        self._finished = FinishedFiles() if finished is None else finished
        self._on_unavailable = on_unavailable
        self._watches: dict[str, int] = {}
        self._watched: dict[int, list[str]] = {}
        self._prompt: set[str] = set()
        self._pending: dict[str, None] = {}
        self._wakeup = asyncio.Event()
        self._watching: asyncio.Future[list[_Found]] | None = None

    def covers(self, folder: str) -> bool:
        """Return whether every commit in `folder` causes an event: watched, and on a local disk."""
        return folder in self._watches and folder in self._prompt

    async def events(self) -> AsyncGenerator[StorageEvent, None]:
        """Yield an event for each folder created, deleted, or with a new or replaced commit."""
        descriptor = await self._open()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._take, descriptor)
        try:
            async with aclosing(self._changed_folders(descriptor)) as folders:
                async for folder in folders:
                    yield StorageEvent(folder)
        finally:
            loop.remove_reader(descriptor)
            self._watches.clear()
            self._watched.clear()
            if self._watching is None or self._watching.done():
                os.close(descriptor)
            else:
                # A folder that does not answer blocks the thread, but must not block closing.
                self._watching.add_done_callback(lambda _: os.close(descriptor))

    async def _open(self) -> int:
        while True:
            try:
                return _check_result(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                self._report(", ".join(self._folders), error.errno or 0)
                await asyncio.sleep(self._recheck_seconds * _RARELY)

    async def _changed_folders(self, descriptor: int) -> AsyncGenerator[str, None]:
        """Yield changed folders, and periodically check for created, deleted or replaced ones."""
        clock = asyncio.get_running_loop().time
        for turn in itertools.count():
            missing = [folder for folder in self._folders if folder not in self._watches]
            await self._watch_all(descriptor, missing if turn % _RARELY else self._folders)
            until = clock() + self._recheck_seconds
            while (left := until - clock()) > 0:
                while self._pending:
                    folder = next(iter(self._pending))
                    del self._pending[folder]
                    yield folder
                self._wakeup.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._wakeup.wait()

    async def _watch_all(self, descriptor: int, folders: Sequence[str]) -> None:
        if not folders:
            return
        attach = partial(_attach, descriptor, folders, dict(self._watches))
        self._watching = asyncio.ensure_future(asyncio.to_thread(attach))
        for found in await asyncio.shield(self._watching):
            folder, old = found.folder, self._watches.get(found.folder)
            if found.error:
                if old is not None:
                    self._forget(descriptor, old)
                if found.error not in (errno.ENOENT, errno.ENOTDIR):
                    self._report(folder, found.error)
            elif found.watch != old:
                if old is not None:
                    self._forget(descriptor, old)
                self._watches[folder] = found.watch
                self._watched.setdefault(found.watch, []).append(folder)
                if found.is_prompt:
                    self._prompt.add(folder)
                # Commits may have been written before the watch started.
                self._pending[folder] = None

    def _forget(self, descriptor: int, watch: int) -> None:
        """Remove a watch, with an event for its folders, which were deleted or replaced."""
        for folder in self._watched.pop(watch, ()):
            self._watches.pop(folder, None)
            self._prompt.discard(folder)
            self._pending[folder] = None
        # Usually the kernel has already removed it.
        _LIBC.inotify_rm_watch(descriptor, watch)

    def _take(self, descriptor: int) -> None:
        """Convert kernel events to pending events; called by the loop when there are any."""
        linked: dict[str, None] = {}
        with suppress(BlockingIOError):
            self._take_all(descriptor, os.read(descriptor, _READ_BYTES), linked)
            while linked:
                # A file that appears with content but was not opened is a link. A writer opens the
                # file before it writes, so its open event has been queued by now.
                self._take_all(descriptor, os.read(descriptor, _READ_BYTES), linked)
        for path in linked:
            self._finished.note(path)
        if self._pending:
            self._wakeup.set()

    def _take_all(self, descriptor: int, data: bytes, linked: dict[str, None]) -> None:
        at = 0
        while at < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                self._pending.update(dict.fromkeys(self._folders))
                linked.clear()
            elif mask & _GONE:
                self._forget(descriptor, watch)
            else:
                self._note(watch, mask, data[at - length : at].rstrip(b"\0"), linked)

    def _note(self, watch: int, mask: int, name: bytes, linked: dict[str, None]) -> None:
        """Record an event of one file; a commit that may have been linked is added to `linked`.

        Case A: it was opened, by its writer or by a reader: it was not just linked.
        Case B: it was created, and is empty: another event follows when it is closed.
        Case C: it was created, with content: by a link, unless it was also opened.
        Case D: it was renamed, or closed by a writer: it is complete.
        """
        text = os.fsdecode(name)
        for folder in self._watched.get(watch, ()):
            if self._names.get(folder, numbered_name)(text) is None:
                continue
            path = f"{folder}/{text}"
            if mask & _OPEN:  # Case A
                linked.pop(path, None)
                continue
            if mask & _CREATE:
                self._finished.forget(path)
                if folder in self._prompt and _is_empty(folder, name):  # Case B
                    continue
                linked[path] = None  # Case C
            else:  # Case D
                self._finished.note(path)
            self._pending[folder] = None

    def _report(self, location: str, error: int) -> None:
        if self._on_unavailable is not None:
            self._on_unavailable(location[:200], _REASONS.get(error) or os.strerror(error))
            self._on_unavailable = None


def _attach(descriptor: int, folders: Sequence[str], known: Mapping[str, int]) -> list[_Found]:
    """Watch each folder; an already watched one keeps its watch. Blocking."""
    found = []
    for folder in folders:
        try:
            watch = _check_result(
                _LIBC.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(_WANTED))
            )
        except OSError as error:
            found.append(_Found(folder, 0, error.errno or errno.EIO, False))
        else:
            if watch != known.get(folder):
                found.append(_Found(folder, watch, 0, bool(is_fast_local(folder))))
    return found


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _is_empty(folder: str, name: bytes) -> bool:
    """Return whether a file is still empty: another event follows when it is closed."""
    try:
        return os.lstat(os.fsencode(folder) + b"/" + name).st_size == 0
    except OSError:
        return False
