"""Delta's part of a stored file list of a snapshot: descriptions of files, and their schema."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from tailerd.errors import OffsetError
from tailerd.formats.delta.changes.snapshot_files import SnapshotFiles
from tailerd.formats.delta.protocol.data_file import TableSchema
from tailerd.formats.delta.protocol.file_index import Sizes
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.state.base import ScratchLocation
from tailerd.state.snapshot_manifest import Codec, SnapshotManifests, StoredList

_CODEC: Codec[LiveFile] = Codec(
    encode=msgspec.msgpack.Encoder().encode,
    decode=msgspec.msgpack.Decoder(list[LiveFile]).decode,
    key=lambda file: file.key,
    size_bytes=lambda file: 200 + len(file.path),
)


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
                remedy="Reset the pipeline with `tailerd offsets reset NAME --to snapshot`.",
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
    """The stored list of one pipeline's snapshot, and plans of differences alongside it."""

    def __init__(self, scratch: ScratchLocation) -> None:
        self._lists = SnapshotManifests(scratch, _CODEC)
        self.find_plan = self._lists.find_plan
        self.write_plan = self._lists.write_plan
        self.remove = self._lists.remove

    async def find(self, table_id: str, version: int) -> SpooledFiles | None:
        """Return the stored files of this snapshot; errors as `SnapshotManifests.find`."""
        stored = await self._lists.find(table_id, version)
        return None if stored is None else SpooledFiles(version, stored)

    async def write(self, table_id: str, files: SnapshotFiles) -> SpooledFiles:
        """Store a snapshot's files durably; errors as `SnapshotManifests.write`."""
        details = msgspec.to_builtins(_Details(files.timestamp_ms, files.schema))
        stored = await self._lists.write(table_id, files.version, files, details)
        return SpooledFiles(files.version, stored)
