"""States of a table that keeps no history of its own, saved as they were observed.

An entry describes one observed state in a format's own form, under its number. It is durable before
the rows that lead to it are delivered, and kept until a later one is: after a crash the same
difference is repeated. A missing entry is a gap, never a fresh start.

Several processes may observe one table into one ledger: of those that save the same number exactly
one succeeds, and the others use its entry.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from tailerd.errors import FileExistsAlreadyError, FileMissingError, OffsetError
from tailerd.remedies import RESTART
from tailerd.storage.base import ObjectStore, delete_all
from tailerd.storage.memory import MemoryStore
from tailerd.storage.stores import Stores

_NAME = re.compile(r"(\d{20})\.entry", re.ASCII)
_MAGIC = b"tailerd1"
_HEADER_BYTES = len(_MAGIC) + 16
_DROPPED = "dropped"


class Ledger:
    """The saved states of one table in a folder of an object store, one file an entry.

    Args:
        store, folder: The ledger's own folder; it need not exist yet.
        is_read_only: For a process that only inspects: its changes stay in memory, and it deletes
            nothing.
        is_durable: Whether the entries outlive the process.
        agree: Takes the number below which its reader needs no entry, and returns that below which
            no reader does.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        *,
        is_read_only: bool = False,
        is_durable: bool = True,
        agree: Callable[[int], int] = int,
    ) -> None:
        self._store = store
        self._folder = folder
        self.is_durable = is_durable
        self.is_read_only = is_read_only
        self._unsaved = Ledger(MemoryStore(), folder) if is_read_only else None
        self.agree = agree
        self._oldest: int | None = None

    async def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending.

        Raises:
            StorageError: The folder cannot be listed.
        """
        found = {number async for _, number in self._list_entries()}
        if self._unsaved is not None:
            found.update(await self._unsaved.numbers())
        return sorted(found)

    async def load(self, number: int) -> bytes | None:
        """Return an entry; None if there is none.

        Raises:
            OffsetError: It is damaged.
            StorageError: It cannot be read.
        """
        try:
            return _unpack_state(await self._store.get(self._path(number)), self._path(number))
        except FileMissingError:
            return None if self._unsaved is None else await self._unsaved.load(number)

    async def save(self, number: int, entry: bytes) -> bool:
        """Save an entry durably; False if there is one of this number already.

        Raises:
            StorageError: It cannot be written.
        """
        if self._unsaved is not None:
            is_there = await self.load(number) is not None
            return not is_there and await self._unsaved.save(number, entry)
        try:
            await self._store.put(self._path(number), _compress(entry), if_absent=True)
        except FileExistsAlreadyError:
            return False
        return True

    async def forget_before(self, number: int) -> None:
        """Delete the entries below a number; makes no request if there can be none.

        Raises:
            StorageError: One cannot be deleted.
        """
        if self._unsaved is not None or (self._oldest is not None and self._oldest >= number):
            return
        listed = [(path, at) async for path, at in self._list_entries()]
        await delete_all(self._store, [path for path, at in listed if at < number])
        self._oldest = number

    async def mark_dropped(self) -> None:
        """Record that the table was missing at a poll.

        Raises:
            StorageError: It cannot be written.
        """
        if self._unsaved is None:
            await self._store.put(f"{self._folder}/{_DROPPED}", b"")

    async def unmark_dropped(self) -> None:
        """Clear that mark: the same table exists again.

        Raises:
            StorageError: The mark cannot be deleted.
        """
        if self._unsaved is None:
            await self._store.delete(f"{self._folder}/{_DROPPED}")

    async def is_marked_dropped(self) -> bool:
        """Return whether the table was missing and the mark has not been cleared since.

        Raises:
            StorageError: The mark cannot be checked.
        """
        try:
            await self._store.head(f"{self._folder}/{_DROPPED}")
        except FileMissingError:
            return False
        return True

    async def clear(self) -> None:
        """Delete everything, the mark last.

        Raises:
            StorageError: Something cannot be deleted.
        """
        if self._unsaved is not None:
            await self._unsaved.clear()
            return
        await delete_all(self._store, [path async for path, _ in self._list_entries()])
        await self._store.delete(f"{self._folder}/{_DROPPED}")
        self._oldest = None

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:020d}.entry"

    async def _list_entries(self) -> AsyncIterator[tuple[str, int]]:
        async for file in self._store.list_from(self._folder):
            match = _NAME.fullmatch(file.name)
            if match is not None:
                yield file.path, int(match[1])


def _compress(entry: bytes) -> bytes:
    head = _MAGIC + len(entry).to_bytes(8, "big") + xxhash.xxh3_64_digest(entry)
    return head + bytes(pa.Codec("zstd").compress(entry, asbytes=True))


def _unpack_state(content: bytes, path: str) -> bytes:
    size = int.from_bytes(content[len(_MAGIC) : len(_MAGIC) + 8], "big")
    digest = content[len(_MAGIC) + 8 : _HEADER_BYTES]
    try:
        if not content.startswith(_MAGIC):
            raise ValueError("it does not begin as one")
        codec = pa.Codec("zstd")
        entry = bytes(codec.decompress(content[_HEADER_BYTES:], size, asbytes=True))
        if len(entry) != size or xxhash.xxh3_64_digest(entry) != digest:
            raise ValueError("its checksum does not match")
    except (ValueError, OSError, OverflowError, MemoryError, pa.ArrowException) as error:
        raise OffsetError(
            f"The ledger entry {path} is damaged: {error}.",
            remedy=f"Restore it from a backup, or {RESTART}.",
        ) from error
    return entry


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """Where a ledger is: a folder or a URL, and how it is opened; see `Ledger`."""

    location: str
    is_read_only: bool = False
    agree: Callable[[int], int] = int


def open_ledger(requested: LedgerLocation | None, stores: Stores) -> Ledger:
    """Return the ledger at a location; without a location, one in memory.

    Raises:
        ConfigError: No store serves the location.
    """
    if requested is None:
        return Ledger(MemoryStore(), "/ledger", is_durable=False)
    store, folder = stores.locate(requested.location)
    return Ledger(store, folder, is_read_only=requested.is_read_only, agree=requested.agree)
