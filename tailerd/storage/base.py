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
        identity: Tells this very file from another of the same name, size and time; to be compared
            only, in one process. 0 where a store cannot tell.
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
    """What a folder's own entry tells: another mark, and a file came, went or was replaced.

    Attributes:
        identity: The mark; to be compared only.
        is_settled: Whether the same mark later also means that nothing has happened since. It does
            not when the last change was only just: clocks of file systems move in steps.
    """

    identity: str
    is_settled: bool


@runtime_checkable
class MarksFolders(Protocol):
    """What a store may offer besides: to tell cheaply that listing a folder again is needless."""

    async def folder_mark(self, folder: str) -> FolderMark | None:
        """Return the folder's mark now; None where none can be relied upon, or no folder is."""
        ...


@runtime_checkable
class ShowsUnfinished(Protocol):
    """What a store offers whose files can be seen while they are written: to tell when they are."""

    async def look_finished(self, path: str) -> tuple[FileMeta, bool | None]:
        """Return what `head` tells of a file now, and whether nobody writes to it any more.

        None where nobody can tell, so that only a second look some time later does.
        """
        ...

    async def wait_finished(self, path: str, seconds: float) -> bool:
        """Wait until the system reports that a file's writer closed it; False after `seconds`."""
        ...


@runtime_checkable
class ListsFolders(Protocol):
    """What a store may offer besides: to list sub-folders without the files below them."""

    def list_folders(
        self, folder: str, starts_with: str = "", on_page: Callable[[], None] | None = None
    ) -> AsyncIterator[str]:
        """Yield the names of folders directly in `folder` that start so, ascending.

        Args:
            on_page: Called before each request.
        """
        ...


class RemoteFile(io.RawIOBase):
    """What `open_input` returns where each read costs a request: read little often, never.

    Readers of Parquet ask for the columns of a row group at once, instead of piece by piece.
    """

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note which ranges (start, length) are read soon: they are fetched meanwhile.

        Ranges of an earlier call that are not among them are read no more.
        """
        raise NotImplementedError


class PendingInput(Protocol):
    """A file that is being opened."""

    def open(self) -> BinaryIO:
        """Wait for it, blocking; as `open_input`."""
        ...

    def cancel(self) -> None:
        """Give it up; it is not opened afterwards."""
        ...


@runtime_checkable
class OpensAhead(Protocol):
    """What a store may offer besides, whose files take their time to open."""

    def begin_input(self, path: str) -> PendingInput:
        """Begin what `open_input` does, without waiting."""
        ...


class ObjectStore(Protocol):
    """Named immutable blobs, listed in name order. Paths use `/`, whatever the store.

    Errors: `FileMissingError` for a file that is not there, `AccessDeniedError` for one that may
    not be touched, `StorageError` for everything else. All methods may be called concurrently and
    survive cancellation.
    """

    scheme: str
    """The URL scheme this store answers to, such as `file`, `memory` or `s3`."""

    is_remote: bool
    """Whether every request crosses a network, and may be charged."""

    is_local_folder: bool
    """Whether paths are those of this machine's file system: there may be symbolic links, and the
    system reports changes."""

    def url_of(self, path: str) -> str:
        """Return the place that `Stores.locate` turns back into this store and `path`."""
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
        """Return the bytes that `get` would, and what `head` tells of the file, in one request."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return whole files in the order asked for, fetched as cheaply as the store can."""
        ...

    async def head(self, path: str) -> FileMeta:
        """Return size and modification time."""
        ...

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Write a file atomically: readers see all of it or nothing; folders appear as needed.

        With `if_absent` exactly one of several racing writers wins, the others get
        `FileExistsAlreadyError`.
        """
        ...

    async def delete(self, path: str) -> None:
        """Delete a file; one that does not exist is deleted already."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """Open a file for random reading, blocking: for data files in worker threads.

        The returned object is usable by pyarrow and closes itself on `close`.
        """
        ...


class NoSettings(Struct, frozen=True):
    """Settings of a store that needs none."""


class NeedsNoSettings:
    """The part of a `StoreProvider` that is the same where nothing can be set and no network is."""

    is_remote: ClassVar[bool] = False
    settings_type: ClassVar[type[NoSettings]] = NoSettings

    @classmethod
    def settings_of(cls, config: StorageConfig | None) -> NoSettings:
        """Return the one value there is."""
        return NoSettings()

    def reconfigure(self, settings: NoSettings) -> None:
        """Change nothing."""


class StoreProvider(Protocol):
    """What the registry names for a URL scheme: finds the store of a place.

    Loading its module must be cheap: vendors' libraries are imported by `locate`. One is made for
    each `Stores` object, and keeps its stores.
    """

    name: ClassVar[str]
    """Key of its settings; the same for all schemes of one kind of store."""

    is_remote: ClassVar[bool]
    """As `ObjectStore.is_remote`, of all its stores."""

    settings_type: ClassVar[type[Any]]
    """A frozen dataclass or msgspec struct: hashable, picklable, encodable as JSON by msgspec.
    Secrets are fields that `repr` leaves out."""

    @classmethod
    def settings_of(cls, config: StorageConfig | None) -> Any:
        """Return the settings in the section `storage`; None: what the environment says.

        Raises:
            ConfigError: The store's own section is wrong.
        """
        ...

    def __init__(self, settings: Any) -> None:
        """Take settings of `settings_type`; nothing is connected yet."""
        ...

    def reconfigure(self, settings: Any) -> None:
        """Use other settings for requests that begin from now on."""
        ...

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store of a place and the path in it, without a trailing slash.

        Args:
            url: The place as it was given, for errors; may hold what must not be repeated.
            host: What follows `scheme://`, up to the next slash.
            path: The rest, from that slash on; not decoded.

        Raises:
            ConfigError: The place makes no sense.
        """
        ...
