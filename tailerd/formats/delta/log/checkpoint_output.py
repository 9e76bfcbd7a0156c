"""Writes Parquet files of checkpoints, a row group at a time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailerd.errors import StorageError
from tailerd.formats.delta.log.checkpoint_source import ROWS_AT_ONCE, CopiedGroup, FileActions
from tailerd.formats.delta.log.row_groups import RowGroupFile, encode_group
from tailerd.formats.delta.protocol.checkpoint_columns import CheckpointColumns
from tailerd.formats.delta.protocol.file_index import Origins
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.storage.base import ObjectStore
from tailerd.storage.output import open_output
from tailerd.threads import in_thread


@dataclass(slots=True)
class WrittenRows:
    """Records where files are described: the keys of `add` rows and the row numbers, parallel."""

    _keys: list[KeyArray] = field(default_factory=list)
    _rows: list[Origins] = field(default_factory=list)

    def take(self, keys: KeyArray, first_row: int) -> None:
        """Record `add` actions in consecutive rows."""
        self._keys.append(keys)
        self._rows.append(np.arange(first_row, first_row + len(keys), dtype=np.uint32))

    def keys(self) -> KeyArray:
        """Return the keys of all `add` rows."""
        return np.concatenate([np.empty(0, np.uint64), *self._keys])

    def rows(self) -> Origins:
        """Return the numbers of all `add` rows, parallel to the keys."""
        return np.concatenate([np.empty(0, np.uint32), *self._rows])


class CheckpointOutput:
    """One Parquet file being written. As a context manager it discards an unfinished file.

    Args:
        path: In the store.
        written: Records where files are described.
        first_row: Number of its first row within the whole checkpoint.

    Attributes:
        rows, adds, removes: Accepted so far.
    """

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        columns: CheckpointColumns,
        written: WrittenRows,
        first_row: int = 0,
    ) -> None:
        self.path = path
        self.first_row = first_row
        self.rows = self.adds = self.removes = 0
        self._columns = columns
        self._written = written
        self._output = open_output(store, path)
        self._file = RowGroupFile(self._output.write)
        self._rows_written = 0
        self._pending: list[FileActions] = []
        self._blanks: dict[int, bytes] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._output.size_bytes

    async def write_others(self) -> None:
        """Write the non-file actions, in a separate row group."""
        batch = self._columns.others_batch()
        self.rows += batch.num_rows
        await in_thread(self._append, batch)

    async def write_removes(self, found: FileActions) -> None:
        """Write `remove` actions."""
        self.rows += len(found.keys)
        self.removes += len(found.keys)
        batch = self._columns.files_batch("remove", found.column)
        await in_thread(self._append, batch)

    async def write_adds(self, found: FileActions | CopiedGroup) -> None:
        """Write `add` actions; small batches are buffered, because row groups should be large."""
        self.rows += len(found.keys)
        self.adds += len(found.keys)
        if isinstance(found, CopiedGroup):
            await in_thread(self._copy, found)
            return
        self._pending.append(found)
        if sum(len(actions.keys) for actions in self._pending) >= ROWS_AT_ONCE:
            await in_thread(self._flush)

    def _append(self, batch: pa.RecordBatch) -> None:
        try:
            self._file.append(batch)
        except (pa.ArrowException, OSError) as error:
            raise StorageError(f"{self.path} cannot be written: {error}.") from error
        self._rows_written += batch.num_rows

    def _flush(self) -> None:
        if not self._pending:
            return
        columns = [actions.column for actions in self._pending]
        keys = np.concatenate([actions.keys for actions in self._pending])
        self._pending = []
        self._written.take(keys, self.first_row + self._rows_written)
        whole = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
        self._append(self._columns.files_batch("add", whole))

    def _copy(self, found: CopiedGroup) -> None:
        count = len(found.keys)
        blank = self._blanks.get(count)
        if blank is None:
            blank = self._blanks[count] = encode_group(self._columns.blank_batch(count))
        self._written.take(found.keys, self.first_row + self._rows_written)
        self._file.copy(found.source, found.columns, blank, count, found.pages)
        self._rows_written += count

    async def finish(self) -> None:
        """Publish the file.

        Raises:
            FileExistsAlreadyError: A file of this name exists.
            StorageError: It cannot be written.
        """
        await in_thread(self._flush)
        await in_thread(self._file.close)
        await self._output.finish(if_absent=True)

    async def __aenter__(self) -> CheckpointOutput:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Do not hide the original error; unfinished files are swept later.
        with suppress(StorageError):
            await self._output.discard()
