"""Finds and reads a table's metadata, manifest lists and manifests.

Without a commit a poll of a folder on a disk is one look at it. Manifests never change, so some are
kept for the next commits.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import (
    CorruptLogError,
    FileMissingError,
    MissingVersionError,
    NotATableError,
    TooLargeError,
    UnreadableMetadataError,
)
from tailerd.formats.iceberg.catalog import find_pointer, is_in_catalog, resolve_catalog
from tailerd.formats.iceberg.manifests import (
    ContentFile,
    Entry,
    Manifest,
    Status,
    parse_manifest,
    parse_manifest_list,
)
from tailerd.formats.iceberg.metadata import (
    FIRST_TIME,
    MAIN,
    METADATA_FOLDER,
    SUFFIX,
    Snapshot,
    TableMetadata,
    TableState,
    metadata_number,
    parse_metadata,
)
from tailerd.formats.iceberg.paths import TablePaths
from tailerd.remedies import RESET_PIPELINE
from tailerd.storage.base import FileMeta, FolderMark, MarksFolders, ObjectStore
from tailerd.storage.table_location import TableLocation

_CACHED_FILES = 200_000
"""Files of manifests that are kept; each takes about half a kilobyte."""
RELIST_SECONDS = 600.0
"""How long a poll asks for the next names only, before it lists the whole folder again."""
_MOST_FOLLOWING = 16
_AT_ONCE = 8
_WAITS_SECONDS = (0.02, 0.1, 0.3)
"""Waits between retries: a metadata file may be seen while it is written or renamed."""


def is_metadata_file(root: str) -> bool:
    """Return whether a location is one metadata file, not the folder of a table."""
    return root.endswith(SUFFIX)


def table_folder(root: str) -> str:
    """Return the table's folder of a location that may be one of its metadata files."""
    if not is_metadata_file(root):
        return root
    folder = root.rpartition("/")[0]
    inside, _, name = folder.rpartition("/")
    return inside if name == METADATA_FOLDER else folder


def metadata_folder(root: str) -> str:
    """Return the folder of a table's metadata files."""
    return root.rpartition("/")[0] if is_metadata_file(root) else f"{root}/{METADATA_FOLDER}"


async def find_metadata(store: ObjectStore, root: str) -> FileMeta | None:
    """Return the newest metadata file of a table; None if there is none.

    That is the file with the greatest number; of several with one number, the one written last.
    Writers of files named `v1.metadata.json` never write a number twice.

    Raises:
        StorageError: The folder cannot be read.
    """
    if is_metadata_file(root):
        try:
            return await store.head(root)
        except FileMissingError:
            return None
    listed = store.list_from(metadata_folder(root))
    return _newest([file async for file in listed if metadata_number(file.name) is not None])


async def find_following(store: ObjectStore, root: str, current: FileMeta) -> FileMeta | None:
    """Return the newest metadata file from `current` on, if no number is left out.

    Takes one short listing for each commit, and one more, however many files the folder has: the
    names of consecutive numbers, such as `00012-` and `00013-`, sort next to each other. None if
    that is not so, or if `current` is gone: then the whole folder must be listed.

    Raises:
        StorageError: The folder cannot be read.
    """
    for _ in range(_MOST_FOLLOWING):
        text = current.name.partition("-")[0].partition(".")[0]
        digits = text.removeprefix("v")
        following = f"{text.removesuffix(digits)}{int(digits) + 1:0{len(digits)}}"
        if len(following) != len(text):
            return None
        files: list[FileMeta] = []
        async for file in store.list_from(metadata_folder(root), text):
            if file.name[: len(text)] > following:
                break
            files.append(file)
        found = _newest(files)
        if found is None or found == current:
            return found
        current = found
    return None


def _newest(files: Iterable[FileMeta]) -> FileMeta | None:
    numbered = [
        (number, file) for file in files if (number := metadata_number(file.name)) is not None
    ]
    _, found = max(
        numbered, key=lambda each: (each[0], each[1].mtime_ms, each[1].name), default=(0, None)
    )
    return found


class TableFiles:
    """The metadata of one table. Used by one task at a time.

    Args:
        branch: As in `TableState`.
        memory_bytes: The configured `memory`.
        catalog: Where a catalog names the current metadata file; None: that is found in the folder.
    """

    def __init__(
        self,
        location: TableLocation,
        *,
        branch: str,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        catalog: TableLocation | None = None,
    ) -> None:
        self._location = location
        self._store = location.store
        self._root = location.root
        self._branch = branch
        self._memory_bytes = memory_bytes
        self._catalog = catalog
        self._mark: FolderMark | None = None
        self._listed_at = float("-inf")
        self._file: FileMeta | None = None
        self._is_by_time = False
        self._state: TableState | None = None
        self._paths: TablePaths | None = None
        self._lists: OrderedDict[int, Sequence[Manifest]] = OrderedDict()
        self._manifests: OrderedDict[tuple[str, int | None], Sequence[Entry]] = OrderedDict()
        self._cached = 0

    @property
    def state(self) -> TableState:
        """The table as of the last poll."""
        assert self._state is not None
        return self._state

    def numbered(self, version: int) -> TableState:
        """Return the state in which commits have the kind of number that `version` is.

        A pipeline that began in format version 1 keeps its times after an upgrade: its versions
        never decrease, for sinks compare them.
        """
        if version >= FIRST_TIME and not self.state.is_by_time:
            self._is_by_time = True
            self._state = self._make_state(self.state.metadata, self.state.path)
        return self.state

    @property
    def paths(self) -> TablePaths:
        """Where its files are."""
        assert self._paths is not None
        return self._paths

    async def refresh(self) -> TableState:
        """Poll, and return the current state.

        Raises:
            NotATableError: There is no metadata file.
            TableError, StorageError: It cannot be read.
        """
        mark = None
        is_in_folder = self._catalog is None and not is_metadata_file(self._root)
        if isinstance(self._store, MarksFolders) and is_in_folder:
            mark = await self._store.folder_mark(metadata_folder(self._root))
        is_same = self._state is not None and mark is not None and mark == self._mark
        if is_same and mark is not None and mark.is_settled:
            return self.state
        waits = iter(_WAITS_SECONDS)
        while True:
            try:
                await self._read_newest()
                break
            except (UnreadableMetadataError, FileMissingError):
                if (wait := next(waits, None)) is None:
                    raise
            await asyncio.sleep(wait)
        self._mark = mark
        return self.state

    async def _read_newest(self) -> None:
        found = await self._find_newest()
        if found is None:
            raise NotATableError(
                f"There is no Iceberg table at {self._location.name}: no file"
                f" {METADATA_FOLDER}/*{SUFFIX}.",
                remedy="Name the table's folder, or one of its metadata files.",
            )
        if self._state is not None and found == self._file:
            return
        if found.size_bytes > self._memory_bytes // 2:
            size = f"The metadata file {found.path} has {found.size_bytes >> 20} MiB"
            raise TooLargeError.within(self._memory_bytes, size)
        content = await self._store.get(found.path)
        parsed = await asyncio.to_thread(parse_metadata, content, found.path, self._memory_bytes)
        state = self._make_state(parsed, found.path)
        if self._state is None or self._state.table_id != state.table_id:
            self._lists.clear()
            self._manifests.clear()
            self._cached = 0
        folder = table_folder(self._root)
        self._state, self._file = state, found
        self._paths = TablePaths(self._location, folder, parsed.location)

    def _make_state(self, metadata: TableMetadata, path: str) -> TableState:
        return TableState(
            metadata,
            name=self._location.name,
            path=path,
            branch=self._branch,
            is_by_time=self._is_by_time,
        )

    async def _find_newest(self) -> FileMeta | None:
        if self._catalog is None:
            now, found = time.monotonic(), None
            is_listed = now < self._listed_at + RELIST_SECONDS and not is_metadata_file(self._root)
            if self._file is not None and is_listed:
                found = await find_following(self._store, self._root, self._file)
            if found is None:
                found = await find_metadata(self._store, self._root)
                self._listed_at = now
            return found
        pointer = await find_pointer(self._catalog)
        return await self._store.head(self._location.stores.locate(pointer)[1])

    async def manifests(self, snapshot: Snapshot) -> Sequence[Manifest]:
        """Return the manifests of a snapshot.

        Raises:
            MissingVersionError: Its manifest list is missing.
            CorruptLogError: It is damaged.
        """
        if (found := self._lists.get(snapshot.snapshot_id)) is not None:
            return found
        path = snapshot.manifest_list
        if not path:
            raise CorruptLogError(
                f"Snapshot {snapshot.snapshot_id} of {self._location.name} has no manifest list:"
                " a writer before 2019 made it.",
                remedy=f"Begin after it: {RESET_PIPELINE}",
            )
        content = await self._get(path, snapshot)
        parsed = await asyncio.to_thread(parse_manifest_list, content, path)
        self._lists[snapshot.snapshot_id] = parsed
        while len(self._lists) > _AT_ONCE:
            self._lists.popitem(last=False)
        return parsed

    async def _get(self, path: str, snapshot: Snapshot) -> bytes:
        at = self.paths.store_path(path)
        try:
            if (await self._store.head(at)).size_bytes > self._memory_bytes // 2:
                raise TooLargeError.within(self._memory_bytes, f"The file {path} is large")
            return await self._store.get(at)
        except FileMissingError as error:
            raise MissingVersionError(
                f"The file {path} of snapshot {snapshot.snapshot_id} of {self._location.name} does"
                " not exist: the snapshot expired meanwhile, or the table is incomplete.",
                remedy=f"{RESET_PIPELINE} Expire snapshots later than the slowest pipeline"
                " delivers.",
            ) from error

    async def entries(
        self, manifests: Iterable[Manifest], snapshot: Snapshot
    ) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of each manifest, in order.

        Args:
            snapshot: That needs them, for errors.

        Raises:
            MissingVersionError: A manifest is missing.
            CorruptLogError: One is damaged.
        """
        listed = list(manifests)
        for first in range(0, len(listed), _AT_ONCE):
            some = listed[first : first + _AT_ONCE]
            tasks = [asyncio.create_task(self._read_manifest(each, snapshot)) for each in some]
            try:
                for task in tasks:
                    yield await task
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_manifest(self, manifest: Manifest, snapshot: Snapshot) -> Sequence[Entry]:
        # A table's first commit in format version 3 gives row ids to manifests from before.
        key = manifest.path, manifest.first_row_id
        if (found := self._manifests.get(key)) is not None:
            self._manifests.move_to_end(key)
            return found
        content = await self._get(manifest.path, snapshot)
        parsed = await asyncio.to_thread(parse_manifest, content, manifest)
        if key not in self._manifests:
            self._manifests[key] = parsed
            self._cached += len(parsed)
        while self._cached > _CACHED_FILES and len(self._manifests) > 1:
            _, dropped = self._manifests.popitem(last=False)
            self._cached -= len(dropped)
        return parsed

    async def live_files(self, snapshot: Snapshot, *, are_deletes: bool) -> list[ContentFile]:
        """Return the data files, or the delete files, of a snapshot.

        Raises:
            TableError: They cannot be read.
        """
        listed = [
            each
            for each in await self.manifests(snapshot)
            if each.is_deletes == are_deletes and each.has_files
        ]
        return [
            entry.file
            async for entries in self.entries(listed, snapshot)
            for entry in entries
            if entry.status is not Status.DELETED
        ]


async def open_files(
    location: TableLocation,
    options: Mapping[str, object],
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> tuple[TableFiles, TableLocation]:
    """Return the metadata of a table, polled once, and where the table's files are.

    Args:
        options: Those of the format; `branch` names the branch or tag.

    Raises:
        NotATableError, TableError, StorageError, ConfigError: It cannot be read.
    """
    catalog = None
    if is_in_catalog(location):
        catalog, location = location, await resolve_catalog(location, memory_bytes)
    branch = str(options.get("branch") or MAIN)
    files = TableFiles(location, branch=branch, memory_bytes=memory_bytes, catalog=catalog)
    await files.refresh()
    return files, location
