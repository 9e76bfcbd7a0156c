"""Finds and reads the manifests of a table.

Without new versions a poll is one request: whether the folder changed, on a disk, or whether there
is a next manifest, in a bucket. A new manifest continues the newest known one only if that is still
the same file: a table may be dropped and created again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock, SystemClock
from tailerd.errors import FileMissingError, MissingVersionError, NotATableError, TableError
from tailerd.formats.lance.protocol.columns import Column, parse_columns
from tailerd.formats.lance.protocol.manifest import Manifest, parse_manifest
from tailerd.formats.lance.protocol.transactions import (
    TRANSACTIONS_FOLDER,
    Operation,
    parse_operation,
)
from tailerd.formats.lance.protocol.version_names import (
    VERSIONS_FOLDER,
    Scheme,
    detect_scheme,
    parse_version,
    staged_version,
)
from tailerd.remedies import RESET_PIPELINE
from tailerd.storage.base import FileMeta, FolderMark, MarksFolders, ObjectStore

RELIST_SECONDS = 60.0
"""How often a bucket's folder is listed without new versions: a table may be created again."""
_MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_MIN_MANIFESTS = 3
"""Minimum number of cached manifests: a commit needs two, plus the newest."""
_AT_ONCE = 8


class VersionLog:
    """The versions of one table. Used by one task at a time.

    Args:
        store, root: Where the table is.
        name: Its location, for errors.

    Attributes:
        root: The table's folder.
        staged: The newest version staged for an external manifest store; None for none.
    """

    def __init__(
        self, store: ObjectStore, root: str, name: str, *, clock: Clock | None = None
    ) -> None:
        self.root = root
        self.staged: Version | None = None
        self._store = store
        self._name = name
        self._clock = clock or SystemClock()
        self._folder = f"{root}/{VERSIONS_FOLDER}"
        self._scheme = Scheme.DESCENDING
        self._versions: list[Version] = []
        self._head_file: FileMeta | None = None
        self._mark: FolderMark | None = None
        self._listed_at = float("-inf")
        self._notified_version: int | None = None
        self._manifests: OrderedDict[int, tuple[Manifest, tuple[Column, ...]]] = OrderedDict()

    @property
    def head(self) -> Version:
        """The newest version, as of the last poll."""
        return self._versions[-1]

    @property
    def versions(self) -> Sequence[Version]:
        """The versions of the last listing of the folder, and those found since."""
        return self._versions

    def note_version(self, version: int | None) -> None:
        """Note that the table may have changed, or that a version exists."""
        if version is not None:
            self._notified_version = max(version, self._notified_version or 0)

    async def refresh(self) -> None:
        """Poll for new versions, with one request if there are none.

        Raises:
            NotATableError: There is no manifest.
            TableError, StorageError: The folder cannot be read.
        """
        if not self._versions:
            await self.list()
            return
        mark = await self._folder_mark()
        if mark is not None and self._mark == mark and mark.is_settled:
            return
        found = await self._find_next()
        is_old = self._clock.monotonic() - self._listed_at >= RELIST_SECONDS
        is_due = self._store.is_local_folder or is_old
        is_missed = self._notified_version is not None and self._notified_version > self.head
        if not found and (is_due or is_missed):
            await self.list()
        self._mark, self._notified_version = mark, None

    async def _folder_mark(self) -> FolderMark | None:
        if isinstance(self._store, MarksFolders):
            return await self._store.folder_mark(self._folder)
        return None

    async def _find_next(self) -> bool:
        """Add manifests that follow the newest known one; return whether there are any."""
        is_first = True
        while True:
            path = self._path(self.head + 1)
            try:
                file = await self._store.head(path)
            except FileMissingError:
                return not is_first
            if is_first and not await self._is_same_head():
                await self.list()
                return True
            is_first = False
            self._versions.append(Version(self.head + 1))
            self._head_file = file

    async def _is_same_head(self) -> bool:
        try:
            return await self._store.head(self._path(self.head)) == self._head_file
        except FileMissingError:
            return False

    async def list(self) -> None:
        """List the whole folder.

        Raises:
            NotATableError: There is no manifest.
            LogChangedError: Manifests have names of two schemes.
        """
        files: dict[Version, FileMeta] = {}
        names: list[str] = []
        staged: list[Version] = []
        async for file in self._store.list_from(self._folder):
            if (version := parse_version(file.name)) is not None:
                files[version] = file
                names.append(file.name)
            elif (waiting := staged_version(file.name)) is not None:
                staged.append(waiting)
        scheme = detect_scheme(names)
        if scheme is None:
            raise NotATableError(
                f"There is no Lance table at {self._name}: no manifest in {VERSIONS_FOLDER}.",
                remedy="Check the path. Branches and tags are not separate tables here.",
            )
        versions = sorted(files)
        head_file = files[versions[-1]]
        # A migration between naming schemes renames manifests and changes nothing else.
        is_other = bool(self._versions) and files.get(self.head) != self._head_file
        if is_other and scheme is self._scheme:
            self._manifests.clear()
        self._scheme, self._versions, self._head_file = scheme, versions, head_file
        self.staged = max((each for each in staged if each > versions[-1]), default=None)
        self._listed_at = self._clock.monotonic()

    def _path(self, version: int) -> str:
        return f"{self._folder}/{self._scheme.format_name(version)}"

    def manifest_name(self, version: int) -> str:
        """Return the name of a version's manifest."""
        return self._scheme.format_name(version)

    async def find(self, version: int) -> Manifest | None:
        """Return a version's manifest; None if it is missing.

        Raises:
            CorruptLogError, UnsupportedFeatureError: It cannot be read.
        """
        if version in self._manifests:
            self._manifests.move_to_end(version)
            return self._manifests[version][0]
        try:
            content = await self._store.get(self._path(version))
        except FileMissingError:
            return None
        found = parse_manifest(content, self._path(version))
        found.check_readable(self._name)
        self._manifests[version] = found, parse_columns(found.fields)
        self._forget_some()
        return found

    async def manifest(self, version: int, why: Callable[[], str]) -> Manifest:
        """Return a version's manifest.

        Args:
            why: Returns a clause about the version, for the error.

        Raises:
            MissingVersionError: It was cleaned up, or does not exist yet.
        """
        found = await self.find(version)
        if found is None:
            raise missing_version(self._name, version, why())
        return found

    async def fetch_ahead(self, version: int) -> None:
        """Read an unread manifest of a bucket together with those after it, into the cache."""
        if self._store.is_remote and version not in self._manifests:
            await asyncio.gather(
                *map(self.find, range(version, min(version + _AT_ONCE, self.head + 1)))
            )

    def columns(self, manifest: Manifest | None) -> tuple[Column, ...]:
        """Return the columns of a version; none before the first."""
        if manifest is None:
            return ()
        known = self._manifests.get(manifest.version)
        if known is not None and known[0] is manifest:
            return known[1]
        return parse_columns(manifest.fields)

    async def operation(self, manifest: Manifest) -> Operation:
        """Return the operation of a version; unknown if its transaction file is missing."""
        if manifest.transaction is not None:
            return parse_operation(manifest.transaction)
        if not manifest.transaction_file:
            return Operation.UNKNOWN
        path = f"{self.root}/{TRANSACTIONS_FOLDER}/{manifest.transaction_file}"
        try:
            return parse_operation(await self._store.get(path))
        except FileMissingError:
            return Operation.UNKNOWN

    def _forget_some(self) -> None:
        size = sum(each.size_bytes for each, _ in self._manifests.values())
        while size > _MAX_MANIFEST_BYTES and len(self._manifests) > _MIN_MANIFESTS:
            _, (oldest, _) = self._manifests.popitem(last=False)
            size -= oldest.size_bytes
        while len(self._manifests) > 4 * _AT_ONCE:
            self._manifests.popitem(last=False)


def missing_version(name: str, version: int, why: str) -> MissingVersionError:
    """Return the error for a missing manifest."""
    return MissingVersionError(
        f"The manifest of version {version} of {name} was cleaned up, {why}.",
        remedy=f"{RESET_PIPELINE} Clean up later than the slowest pipeline delivers.",
    )


def staged_warning(log: VersionLog, name: str) -> TableError:
    """Return the warning that an external manifest store may have a newer version."""
    return TableError(
        f"Version {log.staged} of {name} is staged for a store of manifests elsewhere, and the"
        f" newest in its folder is {log.head}: it is read once it is there too."
    )
