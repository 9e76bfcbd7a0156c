"""Orders the changes of a step that is read in ranges as if it were read at once.

Deletes come before updates, and these before inserts. Ranges ascend by the first coordinate, as do
rows of one kind, so that the result does not depend on the ranges. Rows that must wait are spilled
to disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import StorageError
from tailerd.formats.tiledb.step_rows import ChangedRows

_TOGETHER = 2
"""Rows of an update."""


class _Waiting:
    """Rows of one kind in an unnamed file on disk, removed with the process."""

    def __init__(self, together: int) -> None:
        self._together = together
        with _disk_errors():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, found: ChangedRows) -> None:
        schema = found.rows.schema.append(pa.field("", pa.string()))
        batch = pa.RecordBatch.from_arrays([*found.rows.columns, found.kinds], schema=schema)
        with _disk_errors():
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, schema)
            self._writer.write_batch(batch)

    def all(self) -> Iterator[ChangedRows]:
        if self._writer is None:
            return
        with _disk_errors():
            self._writer.close()
            self._file.seek(0)
            reader = pa.ipc.open_stream(self._file)
        while (batch := self._next(reader)) is not None:
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=_without_last(batch))
            yield ChangedRows(rows, batch.columns[-1], self._together)

    def _next(self, reader: pa.RecordBatchStreamReader) -> pa.RecordBatch | None:
        with _disk_errors(), suppress(StopIteration):
            return reader.read_next_batch()
        return None


def in_order(ranges: Iterable[Iterable[ChangedRows]]) -> Iterator[ChangedRows]:
    """Yield the changes of all ranges; only those of one are in memory at a time.

    Raises:
        StorageError: The local disk cannot be written.
    """
    with _Waiting(_TOGETHER) as updates, _Waiting(1) as inserts:
        for changes in ranges:
            for found in changes:
                if not found.rows.num_rows:
                    continue
                if found.together == _TOGETHER:
                    updates.add(found)
                elif found.kinds[0].as_py() == ChangeType.DELETE:
                    yield found
                else:
                    inserts.add(found)
        yield from updates.all()
        yield from inserts.all()


def _without_last(batch: pa.RecordBatch) -> pa.Schema:
    return batch.schema.remove(batch.num_columns - 1)


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            "Rows of a large commit cannot be kept in this machine's temporary folder until it is"
            f" their turn: {error.strerror or error}.",
            remedy="Free space, or set TMPDIR to a folder with more.",
        ) from error
