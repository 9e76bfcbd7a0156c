"""Writes Parquet files of checkpoints, a row group at a time."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.delta.checkpoint_source import FileActions
from tailerd.delta.protocol.checkpoint_columns import DICTIONARIES, STATISTICS, CheckpointColumns
from tailerd.delta.protocol.file_index import Origins
from tailerd.delta.protocol.file_key import KeyArray
from tailerd.errors import BugError, StorageError
from tailerd.storage.base import ObjectStore
from tailerd.storage.output import open_output

COMPRESSION = "snappy"
"""Every reader of Delta tables reads it."""


@dataclass(slots=True)
class WrittenRows:
    """Where files are written down: the keys of `add` rows and the rows' numbers, parallel."""

    _keys: list[KeyArray] = field(default_factory=list)
    _rows: list[Origins] = field(default_factory=list)

    def take(self, keys: KeyArray, first_row: int) -> None:
        """Take `add` actions in rows that follow each other."""
        self._keys.append(keys)
        self._rows.append(np.arange(first_row, first_row + len(keys), dtype=np.uint32))

    def keys(self) -> KeyArray:
        """Return the keys of all `add` rows."""
        return np.concatenate([np.empty(0, np.uint64), *self._keys])

    def rows(self) -> Origins:
        """Return the numbers of all `add` rows, parallel to the keys."""
        return np.concatenate([np.empty(0, np.uint32), *self._rows])


class CheckpointOutput:
    """One Parquet file in the making. Used as a context, an unfinished one leaves nothing.

    Args:
        path: In the store.
        first_row: Number of its first row within the whole checkpoint.

    Attributes:
        rows, adds, removes: Written so far.
    """

    def __init__(
        self, store: ObjectStore, path: str, columns: CheckpointColumns, first_row: int = 0
    ) -> None:
        self.path = path
        self.first_row = first_row
        self.rows = self.adds = self.removes = 0
        self._columns = columns
        self._output = open_output(store, path)
        # Made with the first rows: it writes at once, and may fail.
        self._writer: pq.ParquetWriter | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._output.size_bytes

    async def write_others(self) -> None:
        """Write the actions that are no file actions, in a row group of their own."""
        await self._write(self._columns.others_batch())

    async def write_removes(self, found: FileActions) -> None:
        """Write `remove` actions."""
        await self._write(self._columns.files_batch("remove", found.column))
        self.removes += len(found.keys)

    async def write_adds(self, found: FileActions, written: WrittenRows) -> None:
        """Write `add` actions, and note where."""
        written.take(found.keys, self.first_row + self.rows)
        await self._write(self._columns.files_batch("add", found.column))
        self.adds += len(found.keys)

    async def _write(self, batch: pa.RecordBatch) -> None:
        await asyncio.to_thread(self._write_blocking, batch)

    def _write_blocking(self, batch: pa.RecordBatch) -> None:
        try:
            if self._writer is None:
                self._writer = self._new_writer()
            self._writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
        except (pa.ArrowException, OSError) as error:
            raise _failed(self.path, error) from error
        self.rows += batch.num_rows

    def _new_writer(self) -> pq.ParquetWriter:
        schema = self._columns.schema
        return pq.ParquetWriter(
            self._output,
            schema,
            compression=COMPRESSION,
            use_dictionary=_leaves(schema, DICTIONARIES),
            write_statistics=_leaves(schema, STATISTICS),
        )

    async def finish(self) -> None:
        """Let the file appear.

        Raises:
            FileExistsAlreadyError: There is one of this name.
            StorageError: It cannot be written.
        """
        if self._writer is None:
            raise BugError(f"{self.path} has no rows, and a checkpoint always has some.")
        try:
            await asyncio.to_thread(self._writer.close)
        except (pa.ArrowException, OSError) as error:
            raise _failed(self.path, error) from error
        await self._output.finish(if_absent=True)

    async def __aenter__(self) -> CheckpointOutput:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._output.discard()
        # A writer that is not closed would write its end when it is forgotten.
        if self._writer is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                self._writer.close()


def _failed(path: str, error: Exception) -> StorageError:
    return StorageError(f"{path} cannot be written: {error}.")


def _leaves(schema: pa.Schema, wanted: tuple[str, ...]) -> list[str]:
    return [leaf for leaf in wanted if leaf.split(".")[0] in schema.names]
