"""The file list of a snapshot in a bucket, for a daemon without a persistent disk.

It is written to the local disk as usual, then uploaded: each file to `<version>.<name>`, the
manifest last, so that a list is either complete or absent. A process that resumes the snapshot
downloads it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tailerd.errors import BugError, FileMissingError, OffsetError, StorageError
from tailerd.formats.delta.changes.snapshot_files import SnapshotFiles
from tailerd.formats.delta.changes.snapshot_spool import (
    MANIFEST,
    SnapshotSpool,
    Spool,
    SpooledFiles,
)
from tailerd.state.base import ScratchLocation
from tailerd.storage.base import ObjectStore
from tailerd.threads import in_thread

_AT_ONCE = 16
_COMING = ".coming"


def open_spool(scratch: ScratchLocation) -> Spool:
    """Return the spool of a pipeline's scratch location."""
    if scratch.store is None:
        return SnapshotSpool(scratch.folder)
    if scratch.require_ownership is None:
        raise BugError("A scratch location in a store needs `require_ownership`.")
    return BucketSpool(
        scratch.store, scratch.prefix, scratch.folder, check_held=scratch.require_ownership
    )


class BucketSpool:
    """The spool of one pipeline, below a folder of an object store that it may empty.

    Args:
        store, folder: The durable place.
        scratch: Local working folder.
        check_held: Raises if another process has taken over the state: the list in the bucket may
            then be that process's.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        scratch: Path,
        *,
        check_held: Callable[[], Awaitable[object]],
    ) -> None:
        self._store = store
        self._folder = folder
        self._scratch = scratch
        self._check_held = check_held
        self._spool = SnapshotSpool(scratch)
        self._may_exist = True

    async def find(self, table_id: str, version: int) -> SpooledFiles | None:
        """Return the spooled list of this snapshot; None if there is none, or it is incomplete.

        Raises:
            StorageError: The bucket cannot be read, or the local disk cannot be written.
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
            # Another process removed or overwrote it meanwhile. The caller writes it again.
            await in_thread(shutil.rmtree, self._scratch / str(version), ignore_errors=True)
            return None
        return found

    async def write(self, table_id: str, files: SnapshotFiles) -> SpooledFiles:
        """Spool a snapshot durably, replacing any previous one.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The bucket or the local disk cannot be written.
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
        """Return what `write_plan` wrote; None if there is nothing.

        Raises:
            StorageError: The bucket cannot be read.
        """
        try:
            return await self._store.get(f"{self._folder}/{name}")
        except FileMissingError:
            return None

    async def write_plan(self, name: str, body: bytes) -> None:
        """Store one file alongside the list, until everything is removed.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The bucket cannot be written.
        """
        self._may_exist = True
        await self._check_held()
        await self._store.put(f"{self._folder}/{name}", body)

    async def remove(self) -> None:
        """Remove everything, the manifest first.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The bucket cannot be listed, or files cannot be deleted.
        """
        await self._spool.remove()
        if not self._may_exist:
            return
        paths = [file.path async for file in self._store.list_from(self._folder)]
        manifests = [path for path in paths if path.endswith(f".{MANIFEST}")]
        others = [path for path in paths if not path.endswith(f".{MANIFEST}")]
        for some in (*_pieces(manifests), *_pieces(others)):
            # As late as possible: a process that stalls after this check deletes one chunk at most.
            await self._check_held()
            await _all(self._store.delete(path) for path in some)
        self._may_exist = False

    async def _upload(self, version: int, path: Path) -> None:
        body = await in_thread(path.read_bytes)
        await self._store.put(f"{self._folder}/{version}.{path.name}", body)

    async def _fetch(self, version: int) -> bool:
        """Download a list from the bucket; return False if there is no complete one."""
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
            await in_thread(_make_empty, coming)
            for some in _pieces(names):
                paths = [f"{self._folder}/{prefix}{name}" for name in some]
                bodies = await self._store.get_many(paths)
                for name, body in zip(some, bodies, strict=True):
                    await in_thread((coming / name).write_bytes, body)
            # The folder may be from a previous table.
            await in_thread(shutil.rmtree, self._scratch / str(version), ignore_errors=True)
            await in_thread(coming.rename, self._scratch / str(version))
        except FileMissingError:
            # Removed after it was listed.
            await in_thread(shutil.rmtree, coming, ignore_errors=True)
            return False
        except OSError as error:
            await in_thread(shutil.rmtree, coming, ignore_errors=True)
            raise StorageError(
                f"The file list of a snapshot cannot be copied to {coming}: {error.strerror}.",
                remedy="Free space, or set TMPDIR to a folder this user can write.",
            ) from error
        return True


async def _read_through(files: SpooledFiles) -> None:
    """Read a list once, so that missing parts are detected before any of it is delivered.

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
    """Run coroutines concurrently; the first error is raised unwrapped and cancels the others."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
