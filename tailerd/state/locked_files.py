"""The files of a state in a folder of this machine, which a lock protects.

Two daemons would move each other's offsets. The lock ends with its process, also when the process
is killed, so no other process can have taken over the state of one that runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from tailerd.errors import BugError, ConfigError, FileMissingError, StateInUseError
from tailerd.private_files import make_private_folder, open_private
from tailerd.state.base import Parse, ScratchLocation, StateObserver, T
from tailerd.storage.base import ObjectStore, put_nondurable
from tailerd.storage.local import LocalStore
from tailerd.storage.output import sweep
from tailerd.threads import complete

LOCK_NAME = "tailerd.lock"
_TOKEN = 0
_ANY_TIME = 2**62
_SUFFIX = ".json"
_KINDS = ("offsets", "paused", "pipelines", "history")


class LockedFiles:
    """A `StateFiles` in a folder: `<name>.json`, with the previous content next to it."""

    def __init__(self, folder: Path) -> None:
        self.store: ObjectStore = LocalStore(is_private=True)
        self.root = str(folder.absolute())
        self._folder = folder
        self._token: int | None = None

    @property
    def token(self) -> int | None:
        """Always the same number: no two processes hold the lock at a time."""
        return self._token

    @asynccontextmanager
    async def hold(self, observer: StateObserver | None = None) -> AsyncIterator[None]:
        """Hold the folder's lock while inside.

        Raises:
            StateInUseError: Another process holds it.
            ConfigError: The folder cannot be written.
        """
        with lock_state(self._folder):
            for kind in _KINDS:
                # Unfinished files are of a process that was killed: no other writes here.
                await sweep(self.store, f"{self.root}/{kind}", before_ms=_ANY_TIME)
            self._token = _TOKEN
            try:
                yield
            finally:
                self._token = None

    async def require_ownership(self) -> int:
        """Return the token; `BugError` without the lock."""
        if self._token is None:
            raise BugError(f"The state {self.root} was to be written without holding it.")
        return self._token

    async def load(self, name: str, parse: Parse[T]) -> T | None:
        """Return the parsed content of a file; None if there is no such file."""
        path = self._path(name)
        try:
            body = await self.store.get(path)
        except FileMissingError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            # Something else has its name, which must not be taken for a new pipeline.
            raise
        return parse(body, path)

    async def save(self, name: str, body: bytes) -> None:
        """Replace a file durably."""
        await self.require_ownership()
        # Completed when cancelled: an abandoned save would run concurrently with the next one.
        await complete(self._replace(self._path(name), body))

    async def _replace(self, path: str, body: bytes) -> None:
        with suppress(FileMissingError):
            former = await self.store.get(path)
            await put_nondurable(self.store, f"{path}.previous", former, if_absent=False)
        await self.store.put(path, body)

    def restore_remedy(self, name: str) -> str:
        """Return how to restore the previous file."""
        file = f"{name.rpartition('/')[2]}{_SUFFIX}"
        return f"restore {file}.previous"

    def scratch(self, pipeline: str) -> ScratchLocation:
        """Return the pipeline's folder."""
        prefix = f"{self.root}/spool/{pipeline}"
        return ScratchLocation(
            store=self.store,
            prefix=prefix,
            folder=Path(prefix),
            require_ownership=self.require_ownership,
        )

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}{_SUFFIX}"


@contextmanager
def lock_state(folder: Path) -> Iterator[None]:
    """Hold the lock of the state folder while inside; create the folder if it is missing.

    Raises:
        StateInUseError: Another process holds it.
        ConfigError: The folder cannot be written.
    """
    path = folder / LOCK_NAME
    try:
        # An existing folder keeps its permissions: the files in it are private anyway.
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(folder)
        file = open_private(path, "a+b")
    except OSError as error:
        raise ConfigError(
            f"The state folder {folder} cannot be used: {error.strerror}.",
            remedy="Set `state` to a folder this user can write.",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateInUseError(
                f"The state folder {folder} is in use by {_read_holder(path)}.",
                remedy="Stop that one, or set `state` to another folder.",
            ) from error
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        file.flush()
        yield


def _read_holder(path: Path) -> str:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return f"process {fields['pid']} on {fields['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # The holder is about to write its name.
        return "another process"
