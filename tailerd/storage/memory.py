"""Files in this process's memory, for tests and demonstrations; looked up by name in a `Stores`."""

from __future__ import annotations

import bisect
import io
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, ClassVar
from urllib.parse import quote, unquote

from tailerd.clock import Clock, SystemClock
from tailerd.errors import FileExistsAlreadyError, FileMissingError
from tailerd.storage.base import FileMeta, NeedsNoSettings, NoSettings, ObjectStore
from tailerd.storage.local import absolute


class MemoryStore:
    """An object store that forgets everything when the process ends.

    Paths start with `/`, as in `memory://NAME/path`. Folders exist only as parts of paths.
    """

    scheme: str = "memory"
    is_remote: bool = False
    is_local_folder: bool = False

    def __init__(self, name: str = "", clock: Clock | None = None) -> None:
        """Create an empty, unregistered store; `clock` provides the files' times."""
        self.name = name
        self.clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._files: dict[str, tuple[bytes, int, int]] = {}
        self._puts = itertools.count(1)

    def format_url(self, path: str) -> str:
        """Return a `memory:` URL."""
        return f"memory://{self.name}{quote(path)}"

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List as `ObjectStore.list_from`, from the files that exist at the first step."""
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            # Strings of code points sort as their UTF-8 bytes do.
            paths = sorted(path for path in self._files if path.startswith(prefix))
            first = bisect.bisect_right(paths, prefix + start_after)
            files = [self._meta(path) for path in paths[first:] if "/" not in path[len(prefix) :]]
        for meta in files:
            yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes, or `length` of them from `start`; fewer at the end."""
        body = self._body(path)
        return body[start:] if length is None else body[start : start + length]

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Return what `head` and `get` return."""
        return self._meta(path), await self.get(path, start, length)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return whole files in the requested order."""
        return [self._body(path) for path in paths]

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        return self._meta(path)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file atomically; with `if_absent` exactly one concurrent writer succeeds."""
        with self._lock:
            if if_absent and path in self._files:
                raise FileExistsAlreadyError(f"{path} exists already.")
            self._files[path] = (bytes(data), self.clock.now_ms(), next(self._puts))

    async def delete(self, path: str) -> None:
        """Delete a file; succeeds if it does not exist."""
        with self._lock:
            self._files.pop(path, None)

    def open_input(self, path: str) -> BinaryIO:
        """Open a file for random reading; later changes are not visible."""
        return io.BytesIO(self._body(path))

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set a file's time, as copying tools and skewed clocks do."""
        self._files[path] = (self._body(path), mtime_ms, next(self._puts))

    def _body(self, path: str) -> bytes:
        file = self._files.get(path)
        if file is None:
            raise FileMissingError(f"{path} does not exist.")
        return file[0]

    def _meta(self, path: str) -> FileMeta:
        body = self._body(path)
        return FileMeta(path, len(body), *self._files[path][1:])


class MemoryStoreProvider(NeedsNoSettings):
    """Serves `memory://NAME/path`; a `storage.base.StoreProvider`. First use creates a name."""

    name: ClassVar[str] = "memory"

    def __init__(self, settings: NoSettings) -> None:
        """Start without stores."""
        self._stores: dict[str, MemoryStore] = {}

    def add(self, store: MemoryStore) -> None:
        """Serve a store by its name, replacing another with that name."""
        self._stores[store.name] = store

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store of that name and the path, percent escapes decoded once."""
        store = self._stores.get(host) or self._stores.setdefault(host, MemoryStore(host))
        return store, absolute(unquote(path))
