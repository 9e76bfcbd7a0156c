"""The files of one table's log: listed, looked up by name, read in slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import FileMissingError
from tailerd.formats.delta.protocol.actions import Line
from tailerd.formats.delta.protocol.commit_file import SLICE_BYTES, LineDecoder, slices
from tailerd.formats.delta.protocol.log_path import (
    LOG_FOLDER,
    SIDECAR_FOLDER,
    LogFile,
    commit_name,
    format_first_name,
    parse_log_path,
)
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.storage.base import FolderMark, MarksFolders, ObjectStore
from tailerd.storage.links import check_not_linked, linked_names
from tailerd.storage.table_location import confine

ONE_GET_BYTES = 16 * 1024 * 1024
"""Larger files are never in memory as a whole."""

LINES_SLICE_BYTES = 1024 * 1024
"""Granularity at which reading a large commit resumes where the last step ended."""


class LogFolder:
    """A table's `_delta_log`.

    Args:
        store, root: Where the table is: a store and the table's path in it.
        memory_bytes: The configured `memory`, which reading a file must not exceed.
    """

    def __init__(
        self, store: ObjectStore, root: str, *, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> None:
        self.memory_bytes = memory_bytes
        self.root = root.rstrip("/")
        # Confine the store to the table if it is not yet: links below it are not trusted.
        self.store = confine(store, self.root)
        self.url = store.format_url(self.root)
        self.path = f"{self.root}/{LOG_FOLDER}"
        self._marks = store if isinstance(store, MarksFolders) else None

    async def check_not_linked(self) -> None:
        """Make sure that writes and deletes in the log do not go through a symbolic link.

        Raises:
            LinkInPathError: The folder of the log or of its sidecars is a symbolic link.
        """
        if self.store.is_local_folder:
            folders = self.path, f"{self.path}/{SIDECAR_FOLDER}"
            await asyncio.to_thread(check_not_linked, *folders)

    async def linked_names(self, folder: str) -> frozenset[str]:
        """Return the names in a folder of this log that are symbolic links."""
        if not self.store.is_local_folder:
            return frozenset()
        return await asyncio.to_thread(linked_names, folder)

    async def mark(self) -> FolderMark | None:
        """Return a mark that changes with the files in the folder; None if the store has none."""
        return None if self._marks is None else await self._marks.folder_mark(self.path)

    async def list_log(self, start_version: int = 0) -> LogListing:
        """List the log from a version on."""
        # The character before "/" sorts before every digit, so `start_version` itself is listed.
        after = format_first_name(start_version)[:-1] if start_version else ""
        files = []
        async for meta in self.store.list_from(self.path, after):
            file = parse_log_path(meta.name, meta.size_bytes, meta.mtime_ms, meta.identity)
            if file is not None and file.version >= start_version:
                files.append(file)
        return LogListing.classify(files)

    def resolve_path(self, file: LogFile) -> str:
        """Return a log file's path in the store."""
        return f"{self.path}/{file.name}"

    async def chunks(
        self, file: LogFile, start: int = 0, slice_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield a file's bytes from `start` on, in slices of bounded size."""
        size = SLICE_BYTES if slice_bytes is None else slice_bytes
        while True:
            chunk = await self.store.get(self.resolve_path(file), start, size)
            if chunk:
                yield chunk
            if len(chunk) < size:
                return
            start += len(chunk)

    async def body_slices(self, file: LogFile) -> Iterator[bytes]:
        """Return a file's bytes in slices of bounded size, to be consumed in a worker thread.

        Small files are fetched with one request; larger ones are read as slices are consumed.

        Raises:
            FileMissingError: The file does not exist.
        """
        path = self.resolve_path(file)
        if file.size_bytes <= ONE_GET_BYTES:
            return slices(await self.store.get(path))
        return self.open_slices(file)

    def open_slices(self, file: LogFile) -> Iterator[bytes]:
        """Yield what `body_slices` returns; blocking."""
        with self.store.open_input(self.resolve_path(file)) as source:
            yield from iter(partial(source.read, SLICE_BYTES), b"")

    async def small_body(self, name: str, most_bytes: int) -> bytes | None:
        """Return the content of a small optional file; None if it is larger than `most_bytes`.

        Raises:
            FileMissingError: The file does not exist.
        """
        meta, body = await self.store.fetch(f"{self.path}/{name}", 0, most_bytes)
        return body if meta.size_bytes <= most_bytes else None

    async def lines(
        self, file: LogFile, start: int = 0, body: bytes | None = None
    ) -> AsyncIterator[tuple[list[Line], int]]:
        """Yield a commit's actions, slice by slice, each with the byte after its last line.

        Args:
            start: Byte to start at, the beginning of a line.
            body: The whole file, if it was read already.

        Raises:
            CorruptLogError, TornCommitError: The file is damaged.
        """
        decoder = LineDecoder(file.name, self.memory_bytes)
        if body is None:
            async for chunk in self.chunks(file, start, LINES_SLICE_BYTES):
                yield decoder.feed(chunk), start + decoder.bytes_done
        else:
            for chunk in slices(body[start:] if start else body):
                yield decoder.feed(chunk), start + decoder.bytes_done
        if decoder.has_rest:
            yield decoder.finish(), start + decoder.bytes_done

    async def commit_file(self, version: int) -> LogFile | None:
        """Look up one commit by its name: the cheapest check for a new version.

        Returns:
            The file with its size and time; None if the commit does not exist yet.
        """
        name = commit_name(version)
        try:
            meta = await self.store.head(f"{self.path}/{name}")
        except FileMissingError:
            return None
        return parse_log_path(name, meta.size_bytes, meta.mtime_ms, meta.identity)
