"""The file list of a snapshot in a bucket, for a daemon without a disk that lasts.

It is made on the machine's own disk, as everywhere, and copied: each file to `<version>.<name>`,
the manifest last, so that a list is there whole or not at all. Whoever goes on copies it back.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tailerd.errors import BugError, FileMissingError, OffsetError, StorageError
from tailerd.formats.base import ScratchPlace
from tailerd.formats.delta.changes.snapshot_files import SnapshotFiles
from tailerd.formats.delta.changes.snapshot_spool import (
    MANIFEST,
    SnapshotSpool,
    Spool,
    SpooledFiles,
)
from tailerd.storage.base import ObjectStore

_AT_ONCE = 16
_COMING = ".coming"


def open_spool(scratch: ScratchPlace) -> Spool:
    """Return the spool of a pipeline's scratch place."""
    if scratch.store is None:
        return SnapshotSpool(scratch.folder)
    if scratch.check_held is None:
        raise BugError("A scratch place in a store has nothing that tells who holds it.")
    return BucketSpool(scratch.store, scratch.prefix, scratch.folder, check_held=scratch.check_held)


class BucketSpool:
    """The spool of one pipeline, below a folder of an object store that it may empty.

    Args:
        store, folder: Where it lasts.
        scratch: Folder of this machine where it is worked with.
        check_held: Raises where another process has taken the state over: what is there now may be
            its list.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        scratch: Path,
        *,
        check_held: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._folder = folder
        self._scratch = scratch
        self._check_held = check_held
        self._spool = SnapshotSpool(scratch)
        self._may_exist = True

    async def find(self, table_id: str, version: int) -> SpooledFiles | None:
        """Return what was spooled of this snapshot; None when it was not, or is not whole.

        Raises:
            StorageError: The bucket cannot be read, or this machine's disk not be written.
        """
        with suppress(OffsetError):
            found = await self._spool.find(table_id, version)
            if found is not None:
                return found
        if not await self._fetch(version):
            return None
        try:
            found = await self._spool.find(table_id, version)
            if found is not None:
                await _read_through(found)
        except OffsetError:
            # Somebody was removing it, or wrote another over it. Whoever asks makes it again.
            await asyncio.to_thread(shutil.rmtree, self._scratch / str(version), ignore_errors=True)
            return None
        return found

    async def write(self, table_id: str, files: SnapshotFiles) -> SpooledFiles:
        """Spool a snapshot durably, in place of what was there.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket or this machine's disk cannot be written.
            TableError: The log cannot be read.
        """
        self._may_exist = True
        await self.remove()
        found = await self._spool.write(table_id, files)
        self._may_exist = True
        folder = self._scratch / str(files.version)
        names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
        for some in _pieces(names):
            await _all(self._upload(files.version, folder / name) for name in some)
        await self._check_held()
        await self._upload(files.version, folder / MANIFEST)
        return found

    async def find_plan(self, name: str) -> bytes | None:
        """Return what `write_plan` wrote; None where there is nothing.

        Raises:
            StorageError: The bucket cannot be read.
        """
        try:
            return await self._store.get(f"{self._folder}/{name}")
        except FileMissingError:
            return None

    async def write_plan(self, name: str, body: bytes) -> None:
        """Keep one file beside the list, until everything is removed.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be written.
        """
        self._may_exist = True
        await self._check_held()
        await self._store.put(f"{self._folder}/{name}", body)

    async def remove(self) -> None:
        """Remove everything, the manifest first.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be listed, or nothing be deleted there.
        """
        await self._spool.remove()
        if not self._may_exist:
            return
        paths = [file.path async for file in self._store.list_from(self._folder)]
        manifests = [path for path in paths if path.endswith(f".{MANIFEST}")]
        others = [path for path in paths if not path.endswith(f".{MANIFEST}")]
        for some in (*_pieces(manifests), *_pieces(others)):
            # As late as can be: a process that sleeps after this look deletes one piece at most.
            await self._check_held()
            await _all(self._store.delete(path) for path in some)
        self._may_exist = False

    async def _upload(self, version: int, path: Path) -> None:
        body = await asyncio.to_thread(path.read_bytes)
        await self._store.put(f"{self._folder}/{version}.{path.name}", body)

    async def _fetch(self, version: int) -> bool:
        """Copy a list from the bucket; False where there is none that is whole."""
        prefix = f"{version}."
        names = [
            file.name.removeprefix(prefix)
            async for file in self._store.list_from(self._folder)
            if file.name.startswith(prefix)
        ]
        if MANIFEST not in names:
            return False
        coming = self._scratch / _COMING
        try:
            await asyncio.to_thread(_make_empty, coming)
            for some in _pieces(names):
                paths = [f"{self._folder}/{prefix}{name}" for name in some]
                bodies = await self._store.get_many(paths)
                for name, body in zip(some, bodies, strict=True):
                    await asyncio.to_thread((coming / name).write_bytes, body)
            # What is there may be of a table that was here before.
            await asyncio.to_thread(shutil.rmtree, self._scratch / str(version), ignore_errors=True)
            await asyncio.to_thread(coming.rename, self._scratch / str(version))
        except FileMissingError:
            # Removed since it was listed.
            await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
            return False
        except OSError as error:
            await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
            raise StorageError(
                f"The file list of a snapshot cannot be copied to {coming}: {error.strerror}.",
                remedy="Free space, or set TMPDIR to a folder this user can write.",
            ) from error
        return True


async def _read_through(files: SpooledFiles) -> None:
    """Read a list once, so that what is missing is found before anything was delivered of it.

    Raises:
        OffsetError: It is damaged.
    """
    async for _ in files.between(0, None):
        pass


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _pieces(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]


async def _all(steps: Iterable[Coroutine[object, object, None]]) -> None:
    """Do steps side by side; the first error is raised as it came, and ends the others."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
