"""The storage of a simulation: files in memory, and one process's unreliable way to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO

from tailerd.clock import Clock
from tailerd.errors import FileMissingError, StorageError
from tailerd.storage.base import FileMeta
from tailerd.storage.memory import MemoryStore
from tests.simulation.chaos import CURRENT, Chaos, Life


def _failed() -> StorageError:
    return StorageError("The storage failed for a moment.")


class SimStore(MemoryStore):
    """Holds all files; found by its name, as data files are. Opening one may fail.

    Attributes:
        born: When each file was first put.
        shown_at: When the files that are shown late are shown.
    """

    def __init__(self, name: str = "", clock: Clock | None = None) -> None:
        super().__init__(name, clock)
        self.born: dict[str, float] = {}
        self.shown_at: dict[str, float] = {}

    def show_late(self, path: str, seconds: float) -> None:
        """Keep a file that is put next out of listings and lookups for a while."""
        self.shown_at[path] = self.clock.monotonic() + seconds

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        await super().put(path, data, if_absent=if_absent)
        self.born.setdefault(path, self.clock.monotonic())

    def open_input(self, path: str) -> BinaryIO:
        chaos = CURRENT.get()
        if chaos is not None:
            chaos.may_fail(_failed)
        return super().open_input(path)


class StoreLink:
    """What one process sees of the store: late, sometimes nothing, sometimes the past."""

    def __init__(self, store: SimStore, chaos: Chaos, life: Life) -> None:
        self.scheme: str = store.scheme
        self.is_remote: bool = store.is_remote
        self.is_local_folder: bool = store.is_local_folder
        self.name = store.name
        self._store = store
        self._chaos = chaos
        self._life = life

    def format_url(self, path: str) -> str:
        return self._store.format_url(path)

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        await self._request()
        hides = self._hidden()
        async for meta in self._store.list_from(folder, start_after):
            if meta.path not in hides:
                yield meta

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        await self._request()
        return await self._store.get(path, start, length)

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        await self._request()
        if path in self._late():
            raise FileMissingError(f"{path} is not shown yet.")
        return await self._store.fetch(path, start, length)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        await self._request()
        return await self._store.get_many(paths)

    async def head(self, path: str) -> FileMeta:
        await self._request()
        if path in self._late():
            raise FileMissingError(f"{path} is not shown yet.")
        return await self._store.head(path)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        raise AssertionError("A pipeline does not write to its table.")

    async def delete(self, path: str) -> None:
        raise AssertionError("A pipeline does not write to its table.")

    def open_input(self, path: str) -> BinaryIO:
        return self._store.open_input(path)

    async def _request(self) -> None:
        await self._chaos.pause(self._life)
        self._chaos.may_fail(_failed)

    def _late(self) -> set[str]:
        """Return the files that are there and that nobody is shown yet, each for its own time."""
        now = self._store.clock.monotonic()
        return {path for path, at in self._store.shown_at.items() if at > now}

    def _hidden(self) -> set[str]:
        """Return what this listing does not show: late files, and those that a cache misses."""
        chaos = self._chaos
        if not chaos.hits(chaos.stale_rate):
            return self._late()
        now = self._store.clock.monotonic()
        horizon = now - chaos.random.uniform(0, chaos.stale_seconds)
        young = [path for path, born in self._store.born.items() if born > horizon]
        return {*self._late(), *young}
