"""Write one file of a delivery, durably and under a temporary name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.sinks.parquet_writer import open_writer
from tailerd.sinks.resources import EncodeBatch
from tailerd.threads import release_memory

_ENCODED_BYTES = 2 * 1024 * 1024
"""Arrow bytes of the rows that are encoded at a time."""


class Part(Protocol):
    """A file being written. Blocking; raises `OSError` and `pa.ArrowException`."""

    path: Path

    def fits(self, batch: ChangeBatch) -> bool:
        """Return whether the batch belongs in this file: size and schema allow it."""
        ...

    def add(self, batch: ChangeBatch) -> None:
        """Append rows."""
        ...

    def finish(self) -> None:
        """Close the temporary file and make its bytes durable."""
        ...

    def discard(self) -> None:
        """Close and remove the temporary file; published files stay. Never raises `OSError`."""
        ...


class JsonLinesPart:
    """A file of JSON lines: the concatenated output of the encoder."""

    def __init__(
        self,
        path: Path,
        temporary: Path,
        *,
        encode: EncodeBatch,
        max_bytes: int,
        mode: int | None = None,
    ) -> None:
        self.path = path
        self._temporary = temporary
        self._encode = encode
        self._max_bytes = max_bytes
        self._written_bytes = 0
        self._file = open_temporary(temporary, mode)

    def fits(self, batch: ChangeBatch) -> bool:
        """Return whether the file is below its maximum size."""
        return self._written_bytes < self._max_bytes

    def add(self, batch: ChangeBatch) -> None:
        """Append the batch's lines, encoded some rows at a time: text takes several times more."""
        count = max(1, batch.num_rows * _ENCODED_BYTES // max(1, batch.size_bytes))
        for start in range(0, batch.num_rows, count):
            lines = self._encode(batch.slice(start, count))
            self._written_bytes += self._file.write(lines)
        if count < batch.num_rows:
            release_memory()

    def finish(self) -> None:
        """Close durably."""
        close_durably(self._file)

    def discard(self) -> None:
        """Remove the temporary file."""
        _forget(self._file, self._temporary)


class ParquetPart:
    """A Parquet file with the three change columns; all rows have the same schema."""

    def __init__(
        self, path: Path, temporary: Path, *, max_bytes: int, mode: int | None = None
    ) -> None:
        self.path = path
        self._temporary = temporary
        self._max_bytes = max_bytes
        self._schema: pa.Schema | None = None
        self._writer: pq.ParquetWriter | None = None
        self._file = open_temporary(temporary, mode)

    def fits(self, batch: ChangeBatch) -> bool:
        """Return whether the file is below its maximum size and has the batch's schema."""
        is_same = self._schema is None or self._schema.equals(batch.rows.schema)
        return is_same and self._file.tell() < self._max_bytes

    def add(self, batch: ChangeBatch) -> None:
        """Append the batch as a row group."""
        rows = pa.Table.from_batches([batch.to_arrow()])
        if self._writer is None:
            self._schema = batch.rows.schema
            self._writer = open_writer(self._file, rows, compression="zstd")
        self._writer.write_table(rows)

    def finish(self) -> None:
        """Write the footer and close durably."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        close_durably(self._file)

    def discard(self) -> None:
        """Remove the temporary file."""
        # Without closing the writer: writing the footer of a discarded file could fail.
        self._writer = None
        _forget(self._file, self._temporary)


def open_temporary(path: Path, mode: int | None) -> BinaryIO:
    """Create an empty temporary file, which is renamed when it is complete.

    Args:
        mode: Its permissions; None uses the umask.
    """
    file = path.open("wb")
    if mode is not None:
        # Before anything is written to it.
        os.fchmod(file.fileno(), mode)
    return file


def close_durably(file: BinaryIO) -> None:
    """Close a file after its bytes are on disk; idempotent."""
    if file.closed:
        return
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _forget(file: BinaryIO, temporary: Path) -> None:
    # On a full disk the last flush fails; the file is removed anyway.
    with contextlib.suppress(OSError):
        file.close()
    # A file that cannot be removed keeps its temporary name; `resume` removes it.
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
