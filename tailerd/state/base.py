"""The contract of a state's files. Its clauses are the names of the contract tests.

Any process may read them. Only the owner of the state writes them, and each write carries its
token: a process that lost the state fails, or writes a file that is never read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tailerd.errors import StateInUseError
from tailerd.storage.base import ObjectStore

T = TypeVar("T")

Parse = Callable[[bytes, str], T]
"""Takes a file's content and its location; raises a `TailerdError` with both if it is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchLocation:
    """Where a source keeps a pipeline's files across restarts, such as a snapshot's file list.

    Attributes:
        store, prefix: The durable location.
        folder: The same on this machine; with another store a cache, which may disappear at any
            time.
        require_ownership: As that of `StateFiles`; called before each write to the store.
    """

    store: ObjectStore
    prefix: str
    folder: Path
    require_ownership: Callable[[], Awaitable[int]]


class StateObserver(Protocol):
    """Is notified of what other processes do with a state."""

    async def on_wait(self, holder: str, seconds: float) -> None:
        """Note that this process waits for the state, and how long at most."""
        ...

    def on_hold(self) -> None:
        """Note that this process holds the state now."""
        ...

    def on_lost(self, error: StateInUseError) -> None:
        """Note that another process took it over, as the error says."""
        ...


class StateFiles(Protocol):
    """The files of one state, by name: a path below its root, without a suffix.

    `save` and `load` are for JSON that changes, and keep the previous content for an operator. One
    task at a time uses a name. Files that need less are written to the `store` directly.

    Errors: `StateInUseError` if another process has taken over the state; `StorageError` if the
    store cannot be read or written; `BugError` for a write without holding the state.
    """

    store: ObjectStore
    root: str

    @property
    def token(self) -> int | None:
        """The owner's token; None if this process is not the owner, as far as it knows."""
        ...

    def hold(self, observer: StateObserver | None = None) -> AbstractAsyncContextManager[None]:
        """Own the state while inside.

        Raises:
            StateInUseError: Another process owns it.
            ConfigError, StorageError: It cannot be used.
        """
        ...

    async def require_ownership(self) -> int:
        """Return the owner's token after a check that this process still is the owner."""
        ...

    async def load(self, name: str, parse: Parse[T]) -> T | None:
        """Return the parsed content of a file; None if it was never saved.

        The owner takes it over: from then on no former owner can save it.
        """
        ...

    async def save(self, name: str, body: bytes) -> None:
        """Replace a file durably: after a crash `load` returns it, or the file saved before it."""
        ...

    def restore_remedy(self, name: str) -> str:
        """Return how an operator returns to the previous content, as part of a sentence."""
        ...

    def scratch(self, pipeline: str) -> ScratchLocation:
        """Return where a pipeline's source keeps files; it requires holding the state."""
        ...
