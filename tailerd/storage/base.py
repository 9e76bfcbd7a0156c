"""The contract of an object store. Its clauses are the names of the contract tests."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol, runtime_checkable

from msgspec import Struct

if TYPE_CHECKING:
    from tailerd.config.storage import StorageConfig


class FileMeta(Struct, frozen=True, gc=False):
    """One stored file.

    Attributes:
        path: Full path in the store: absolute POSIX path, or bucket/key.
        size_bytes: Length.
        mtime_ms: Last modification, milliseconds since the epoch.
        identity: Distinguishes this file from another with the same name, size and time. For
            comparison only, within one process. 0 where the store has no such value.
    """

    path: str
    size_bytes: int
    mtime_ms: int
    identity: int = 0

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


class FolderMark(Struct, frozen=True, gc=False):
    """A value from the folder's own entry that changes when a file is added, removed or replaced.

    Attributes:
        identity: The mark; for comparison only.
        is_settled: Whether an equal mark later also means that nothing has changed since. False
            right after a change, because file system timestamps are coarse.
    """

    identity: str
    is_settled: bool


@runtime_checkable
class MarksFolders(Protocol):
    """Optional for a store: detects cheaply that a folder need not be listed again."""

    async def folder_mark(self, folder: str) -> FolderMark | None:
        """Return the folder's current mark; None if it is unreliable or there is no folder."""
        ...


@runtime_checkable
class ShowsUnfinished(Protocol):
    """Optional for a store whose files are visible while written: detects unfinished files."""

    async def stat_finished(self, path: str) -> tuple[FileMeta, bool | None]:
        """Return what `head` returns, and whether no process has the file open for writing.

        None where that cannot be determined; only a second check some time later shows it.
        """
        ...

    async def wait_finished(self, path: str, seconds: float) -> bool:
        """Wait until the system reports that a file's writer closed it; False after `seconds`."""
        ...


@runtime_checkable
class ListsFolders(Protocol):
    """Optional for a store: lists sub-folders without the files below them."""

    def list_folders(
        self, folder: str, starts_with: str = "", on_page: Callable[[], None] | None = None
    ) -> AsyncIterator[str]:
        """Yield the names of folders directly in `folder` that start with `starts_with`, ascending.

        Args:
            on_page: Called before each request.
        """
        ...


class RemoteFile(io.RawIOBase):
    """The file that `open_input` returns where each read costs a request: avoid small reads.

    Parquet readers request all columns of a row group at once, not piece by piece.
    """

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Prefetch ranges (start, length) that are read soon.

        Ranges of an earlier call that are not among them will not be read.
        """
        raise NotImplementedError


class PendingInput(Protocol):
    """A file that is being opened."""

    def open(self) -> BinaryIO:
        """Wait until it is open, blocking; return what `open_input` returns."""
        ...

    def cancel(self) -> None:
        """Cancel the opening; `open` is not called afterwards."""
        ...


@runtime_checkable
class OpensAhead(Protocol):
    """Optional for a store whose files are slow to open: starts opening early."""

    def begin_input(self, path: str) -> PendingInput:
        """Start what `open_input` does, without waiting."""
        ...


class ObjectStore(Protocol):
    """Named immutable blobs, listed in name order. Paths use `/` in every store.

    Errors: `FileMissingError` for a file that does not exist, `AccessDeniedError` for one that this
    user may not access, `StorageError` for everything else. All methods may be called concurrently
    and survive cancellation.
    """

    scheme: str
    """The URL scheme of this store, such as `file`, `memory` or `s3`."""

    is_remote: bool
    """Whether every request crosses a network, and may be charged."""

    is_local_folder: bool
    """Whether paths are those of this machine's file system: there may be symbolic links, and the
    system reports changes."""

    def format_url(self, path: str) -> str:
        """Return the location that `Stores.locate` resolves to this store and `path`."""
        ...

    def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List the files directly in `folder` whose name is strictly greater than `start_after`.

        Ascending by the UTF-8 bytes of the name; sub-folders are left out; a folder that does not
        exist lists nothing. Every file that existed before the call and was not deleted is listed.
        """
        ...

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the file's bytes, or `length` of them from `start`; fewer at the end."""
        ...

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Return what `head` and `get` return, in one request."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return whole files in the requested order, fetched as cheaply as the store can."""
        ...

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        ...

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file atomically: readers see all of it or nothing; missing folders are created.

        With `if_absent` exactly one of several concurrent writers succeeds, the others get
        `FileExistsAlreadyError`.
        """
        ...

    async def delete(self, path: str) -> None:
        """Delete a file; succeeds if it does not exist."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """Open a file for random reading, blocking: for data files in worker threads.

        The returned object is usable by pyarrow and closes itself on `close`.
        """
        ...


@runtime_checkable
class NondurableStore(Protocol):
    """Optional for a store: writes without fsync, which takes milliseconds.

    For files that merely save readers some work, and whose damage is detected.
    """

    async def put_nondurable(self, path: str, data: bytes, *, if_absent: bool = True) -> None:
        """Write a file as `ObjectStore.put` does, but without fsync.

        Readers see all of it or nothing, even if a process is killed; but a power failure may lose
        it, truncate it or leave zeros in it.
        """
        ...


async def put_nondurable(
    store: ObjectStore, path: str, data: bytes, *, if_absent: bool = True
) -> None:
    """Write such a file; durably where the store has no `put_nondurable`.

    Raises:
        FileExistsAlreadyError: With `if_absent`, if it exists already.
        StorageError: It cannot be written.
    """
    if isinstance(store, NondurableStore):
        await store.put_nondurable(path, data, if_absent=if_absent)
    else:
        await store.put(path, data, if_absent=if_absent)


BATCH_FILES = 1000
"""Maximum number of files per request."""


@runtime_checkable
class DeletesMany(Protocol):
    """Optional for a store: deletes several files with one request."""

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files of one bucket in batches; a batch starts when the previous one is complete.

        Within a batch the server chooses the order. Files that do not exist count as deleted.

        Raises:
            StorageError: Some files of a batch still exist, and all files of later batches.
        """
        ...


async def delete_all(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete files in the given order, in batches if the store supports them.

    Raises:
        StorageError: A file cannot be deleted; no file after its batch was deleted.
    """
    if isinstance(store, DeletesMany):
        await store.delete_many(paths)
        return
    for path in paths:
        await store.delete(path)


def count_requests(store: ObjectStore, files: int) -> int:
    """Return the number of requests that deleting `files` files takes."""
    return -(-files // BATCH_FILES) if isinstance(store, DeletesMany) else files


class NoSettings(Struct, frozen=True):
    """Settings of a store that needs none."""


class NeedsNoSettings:
    """The common part of every `StoreProvider` without settings and without a network."""

    is_remote: ClassVar[bool] = False
    settings_type: ClassVar[type[NoSettings]] = NoSettings

    @classmethod
    def read_settings(cls, config: StorageConfig | None) -> NoSettings:
        """Return the only value."""
        return NoSettings()

    def reconfigure(self, settings: NoSettings) -> None:
        """Change nothing."""


class StoreProvider(Protocol):
    """Resolves locations of a URL scheme to stores; the registry names one per scheme.

    Importing its module must be cheap: vendors' libraries are imported by `locate`. Each `Stores`
    object creates one instance, which keeps its stores.
    """

    name: ClassVar[str]
    """Key of its settings; the same for all schemes of one kind of store."""

    is_remote: ClassVar[bool]
    """As `ObjectStore.is_remote`, of all its stores."""

    settings_type: ClassVar[type[Any]]
    """A frozen dataclass or msgspec struct: hashable, picklable, encodable as JSON by msgspec.
    Secrets are fields that `repr` leaves out."""

    @classmethod
    def read_settings(cls, config: StorageConfig | None) -> Any:
        """Return the settings of the section `storage`; for None, those of the environment.

        Raises:
            ConfigError: The store's own section is wrong.
        """
        ...

    def __init__(self, settings: Any) -> None:
        """Accept settings of `settings_type`; does not connect yet."""
        ...

    def reconfigure(self, settings: Any) -> None:
        """Use other settings for requests that start from now on."""
        ...

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store of a location and the path in it, without a trailing slash.

        Args:
            url: The location as given, for errors; may contain secrets, which are not shown.
            host: What follows `scheme://`, up to the next slash.
            path: The rest, from that slash on; not decoded.

        Raises:
            ConfigError: The location is invalid.
        """
        ...
