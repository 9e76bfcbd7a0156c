"""The live files of one version, by ranges of their keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Protocol

from tailerd.errors import LogCleanedUpError, MissingVersionError
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_index import Sizes
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.snapshot import Snapshot


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
