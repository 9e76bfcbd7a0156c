"""One file of a delivery: written under a temporary name and made durable."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.sinks.resources import EncodeBatch


class Part(Protocol):
    """A file being written. Blocking; `OSError` and `pa.ArrowException` come through."""

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
        """Close and remove the temporary file; what is published stays. Never raises `OSError`."""
        ...


class JsonLinesPart:
    """JSON lines: bytes of the encoder one after the other."""

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
        """Return whether the file is still below its size."""
        return self._written_bytes < self._max_bytes

    def add(self, batch: ChangeBatch) -> None:
        """Append the batch's lines."""
        self._written_bytes += self._file.write(self._encode(batch))

    def finish(self) -> None:
        """Close durably."""
        close_durably(self._file)

    def discard(self) -> None:
        """Remove the temporary file."""
        _forget(self._file, self._temporary)


class ParquetPart:
    """Parquet with the three change columns; all rows of a file have one schema."""

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
        """Return whether the file is below its size and of the batch's schema."""
        is_same = self._schema is None or self._schema.equals(batch.rows.schema)
        return is_same and self._file.tell() < self._max_bytes

    def add(self, batch: ChangeBatch) -> None:
        """Append the batch as a row group."""
        rows = batch.to_arrow()
        if self._writer is None:
            self._schema = batch.rows.schema
            self._writer = pq.ParquetWriter(self._file, rows.schema, compression="zstd")
        self._writer.write_batch(rows)

    def finish(self) -> None:
        """Write the footer and close durably."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        close_durably(self._file)

    def discard(self) -> None:
        """Remove the temporary file."""
        # Without closing: the footer of a file that goes away is not worth an error.
        self._writer = None
        _forget(self._file, self._temporary)


def open_temporary(path: Path, mode: int | None) -> BinaryIO:
    """Open the file that becomes another one's when it is finished, empty.

    Args:
        mode: Its permissions; None for what the umask leaves.
    """
    file = path.open("wb")
    if mode is not None:
        # While there is nothing in it.
        os.fchmod(file.fileno(), mode)
    return file


def close_durably(file: BinaryIO) -> None:
    """Close a file once its bytes are on disk; closing twice is closing once."""
    if file.closed:
        return
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _forget(file: BinaryIO, temporary: Path) -> None:
    # A full disk refuses the last flush; the file is removed anyway.
    with contextlib.suppress(OSError):
        file.close()
    # What cannot be removed keeps its temporary name: `resume` removes it.
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
