"""The files of one delivery, cut by its rows alone, so that a repeated delivery cuts the same.

Rows are counted by their sizes. Once they exceed `max_bytes`, or have another schema, the files of
all partitions end and the next number begins. Rows wait in memory until there are enough for a row
group, so at most `max_bytes` of them do; one group is written while the rows of the next are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import FileExistsAlreadyError
from tailerd.sinks.bucket.partitions import check_columns, split_rows
from tailerd.sinks.bucket.row_sizes import measure_rows
from tailerd.sinks.parquet_writer import open_writer
from tailerd.sinks.resources import EncodeBatch
from tailerd.storage.base import ObjectStore
from tailerd.storage.output import Output, open_output
from tailerd.threads import complete, discard, in_thread, release_memory

_GROUP_BYTES = 16 * 1024 * 1024
_ENDINGS = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How rows become files. A delivery that was begun keeps its layout."""

    format: Literal["jsonl", "parquet"]
    compression: Literal["none", "gzip", "zstd"]
    max_bytes: int
    partition_by: tuple[str, ...] = ()

    @property
    def ending(self) -> str:
        """Return the end of file names."""
        return ".parquet" if self.format == "parquet" else f".jsonl{_ENDINGS[self.compression]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The folder of a sink.

    Attributes:
        store, root: The store, and the path of the folder in it.
        is_conditional: Whether an existing file stays unchanged.
    """

    store: ObjectStore
    root: str
    is_conditional: bool = True


class DataFile(Struct, frozen=True, kw_only=True):
    """A file of a delivery; `path` is relative to the sink's folder."""

    path: str
    rows: int
    bytes: int


class _OpenFile:
    """The rows of one partition under one number. Blocking."""

    def __init__(self, path: str, layout: Layout, encode: EncodeBatch) -> None:
        self.path, self.rows = path, 0
        self._layout, self._encode = layout, encode
        self._waiting: list[ChangeBatch] = []
        self._waiting_bytes = 0
        self.output: Output | None = None
        self._stream: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: ChangeBatch, size_bytes: int) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += size_bytes
        self.rows += batch.num_rows

    @property
    def is_full(self) -> bool:
        """Whether the waiting rows are enough for a row group."""
        return self._waiting_bytes >= _GROUP_BYTES

    def take_waiting(self) -> list[ChangeBatch]:
        """Return the waiting rows, which no longer wait."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting

    def write(self, batches: Sequence[ChangeBatch], target: Target) -> None:
        """Write rows: a row group, or lines."""
        if self.output is None:
            self.output = open_output(target.store, f"{target.root}/{self.path}")
        if self._layout.format == "parquet":
            self._write_group(batches, self.output)
        else:
            self._write_lines(batches, self.output)
        release_memory()

    def _write_group(self, batches: Sequence[ChangeBatch], output: Output) -> None:
        table = pa.Table.from_batches([batch.to_arrow() for batch in batches])
        if self._writer is None:
            self._writer = open_writer(
                cast(IO[bytes], output), table, compression=self._layout.compression
            )
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def _write_lines(self, batches: Sequence[ChangeBatch], output: Output) -> None:
        if self._stream is None:
            file, compression = pa.PythonFile(output, "w"), self._layout.compression
            is_plain = compression == "none"
            self._stream = file if is_plain else pa.CompressedOutputStream(file, compression)
        for batch in batches:
            self._stream.write(self._encode(batch))

    def close(self, target: Target) -> Output:
        """Write the remaining rows and the footer; return the complete output."""
        if self._waiting:
            self.write(self.take_waiting(), target)
        if self._writer is not None:
            self._writer.close()
        if self._stream is not None:
            self._stream.close()
        assert self.output is not None
        return self.output


class DeliveryFiles:
    """Writes the files of one delivery.

    Errors: `StorageError` of the store, `pa.ArrowException` of rows that the format cannot hold.
    """

    def __init__(
        self, target: Target, layout: Layout, encode: EncodeBatch, *, folder: str, name: str
    ) -> None:
        """Start; nothing is written yet.

        Args:
            target: Where the sink writes.
            layout: How rows become files.
            encode: Encodes a batch as JSON lines.
            folder: The folder of the files, or of their partitions, relative to the sink's.
            name: The beginning of each name.
        """
        self._target, self._layout, self._encode = target, layout, encode
        self._folder, self._name = folder, name
        self._open: dict[str, _OpenFile] = {}
        self._number, self._size_bytes = 0, 0
        self._schema: pa.Schema | None = None
        self._files: list[DataFile] = []
        self._writing: asyncio.Task[None] | None = None

    async def add(self, batch: ChangeBatch) -> None:
        """Append rows."""
        if self._schema is None or not self._schema.equals(batch.rows.schema):
            check_columns(batch.rows.schema, self._layout.partition_by)
            await self._end_files()
            self._schema = batch.rows.schema
        sizes = await in_thread(measure_rows, batch.rows)
        ends = np.cumsum(sizes)
        start = 0
        while start < batch.num_rows:
            if self._size_bytes >= self._layout.max_bytes:
                await self._end_files()
            before = int(ends[start - 1]) if start else 0
            limit = before + self._layout.max_bytes - self._size_bytes
            end = min(int(np.searchsorted(ends, limit)) + 1, batch.num_rows)
            size_bytes = int(ends[end - 1]) - before
            await in_thread(self._add_rows, batch.slice(start, end - start), size_bytes)
            for file in self._open.values():
                if file.is_full:
                    await self._write(file)
            self._size_bytes += size_bytes
            start = end

    def _add_rows(self, batch: ChangeBatch, size_bytes: int) -> None:
        for folder, rows in split_rows(batch, self._layout.partition_by):
            if folder not in self._open:
                self._open[folder] = self._open_file(folder)
            share = size_bytes * rows.num_rows // batch.num_rows
            self._open[folder].add(rows, share)

    def _open_file(self, folder: str) -> _OpenFile:
        name = f"{self._name}-{self._number:05d}{self._layout.ending}"
        path = "/".join(part for part in (self._folder, folder, name) if part)
        return _OpenFile(path, self._layout, self._encode)

    async def _write(self, file: _OpenFile) -> None:
        """Write a file's waiting rows, while the next ones are read; one file at a time."""
        await self._wait_written()
        step = in_thread(file.write, file.take_waiting(), self._target)
        self._writing = asyncio.create_task(step)

    async def _wait_written(self) -> None:
        if self._writing is not None:
            await complete(self._writing)
            self._writing = None

    async def finish(self) -> list[DataFile]:
        """Make the last files visible; return all."""
        await self._end_files()
        return self._files

    async def _end_files(self) -> None:
        if not self._open:
            return
        await self._wait_written()
        for folder in sorted(self._open):
            file = self._open[folder]
            output = await in_thread(file.close, self._target)
            try:
                await output.finish(if_absent=self._target.is_conditional)
            except FileExistsAlreadyError:
                # From an earlier attempt, or one that goes on elsewhere: it has the same rows.
                await output.discard()
            self._files.append(DataFile(path=file.path, rows=file.rows, bytes=output.size_bytes))
            del self._open[folder]
        self._number, self._size_bytes = self._number + 1, 0

    async def discard(self) -> None:
        """Drop files that are not visible yet."""
        if self._writing is not None:
            await discard(self._writing)
        for file in self._open.values():
            if file.output is not None:
                await file.output.discard()
