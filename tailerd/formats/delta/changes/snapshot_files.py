"""The live files of one version, by ranges of their keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import pyarrow as pa

from tailerd.errors import LogCleanedUpError, MissingVersionError, OffsetError
from tailerd.formats.delta.log.live_files import read_live_entries, read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_entries import ENTRIES, files_of_entries
from tailerd.formats.delta.protocol.file_index import Sizes
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.remedies import RESET_PIPELINE
from tailerd.state.base import ScratchLocation
from tailerd.state.snapshot_manifest import Codec, Listing, SnapshotManifests, StoredList


class SnapshotFiles(Protocol):
    """The live files of a snapshot.

    Attributes:
        version, timestamp_ms: The version and its commit timestamp.
        schema: Its schema.
    """

    version: int
    timestamp_ms: int
    schema: TableSchema

    def sorted_files(self) -> tuple[KeyArray, Sizes]:
        """Return keys, ascending, and sizes of all files."""
        ...

    def between(self, first_key: int, until_key: int | None) -> AsyncIterator[list[LiveFile]]:
        """Yield the files with first_key <= key < until_key, in lists of bounded length.

        Raises:
            TailerdError: They cannot be read.
        """
        ...


class LoggedFiles:
    """The files from the log, read again for every range."""

    def __init__(self, reader: LogReader, snapshot: Snapshot, timestamp_ms: int) -> None:
        """Initialize with a snapshot that was opened with files."""
        self._reader = reader
        self._snapshot = snapshot
        self.version = snapshot.version
        self.timestamp_ms = timestamp_ms
        self.schema = snapshot.state.schema

    def sorted_files(self) -> tuple[KeyArray, Sizes]:
        """Return keys, ascending, and sizes of all files."""
        return self._snapshot.files.sorted_files()

    async def between(self, first_key: int, until_key: int | None) -> AsyncIterator[list[LiveFile]]:
        """Yield the files with first_key <= key < until_key; their order is the log's.

        Raises:
            TableError: The log changed since the snapshot was made.
        """
        async for files in read_live_files(
            self._reader, self._snapshot, first_key=first_key, until_key=until_key
        ):
            yield files

    def entries(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield all files as columns; errors as `between`."""
        return read_live_entries(self._reader, self._snapshot)


@contextmanager
def retry_if_log_cleaned_up() -> Iterator[None]:
    """Replace the error for a version that is removed while a snapshot of it starts.

    Raises:
        LogCleanedUpError: Instead of `MissingVersionError`: open the table again at a newer head.
    """
    try:
        yield
    except MissingVersionError as error:
        raise LogCleanedUpError(error.message, remedy="Open the table again.") from error


class Listed(Listing, Protocol):
    """All files of a snapshot, to be stored.

    Attributes:
        version, timestamp_ms, schema: As of `SnapshotFiles`.
    """

    version: int
    timestamp_ms: int
    schema: TableSchema


class _Details(msgspec.Struct, frozen=True):
    timestamp_ms: int
    schema: TableSchema


class SpooledFiles:
    """A stored list; see `SnapshotFiles`."""

    def __init__(self, version: int, stored: StoredList[LiveFile]) -> None:
        try:
            details = msgspec.convert(stored.details, _Details)
        except msgspec.ValidationError as error:
            raise OffsetError(
                f"The file list of version {version} is damaged: {error}.",
                remedy=RESET_PIPELINE,
            ) from error
        self.version = version
        self.timestamp_ms = details.timestamp_ms
        self.schema = details.schema
        self._stored = stored

    def sorted_files(self) -> tuple[KeyArray, Sizes]:
        """Return keys, ascending, and sizes of all files; they stay on disk."""
        return self._stored.sorted_files()

    def between(self, first_key: int, until_key: int | None) -> AsyncIterator[list[LiveFile]]:
        """Yield the files with first_key <= key < until_key, ascending.

        Raises:
            OffsetError: The list is damaged.
        """
        return self._stored.between(first_key, until_key)


class Spool:
    """The stored list of one pipeline's snapshot, and plans of differences next to it."""

    def __init__(self, scratch: ScratchLocation) -> None:
        self._lists = SnapshotManifests(scratch, Codec(ENTRIES, files_of_entries))
        self.find_plan = self._lists.find_plan
        self.write_plan = self._lists.write_plan
        self.remove = self._lists.remove

    async def find(self, table_id: str, version: int) -> SpooledFiles | None:
        """Return the stored files of this snapshot; errors as `SnapshotManifests.find`."""
        stored = await self._lists.find(table_id, version)
        return None if stored is None else SpooledFiles(version, stored)

    async def write(self, table_id: str, files: Listed) -> SpooledFiles:
        """Store a snapshot's files durably; errors as `SnapshotManifests.write`."""
        details = msgspec.to_builtins(_Details(files.timestamp_ms, files.schema))
        stored = await self._lists.write(table_id, files.version, files, details)
        return SpooledFiles(files.version, stored)
