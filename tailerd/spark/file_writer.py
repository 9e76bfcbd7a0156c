"""The file sink on Spark: one micro-batch becomes files of its own, exactly once.

Executors write temporary files; only the driver's commit gives them their names,
`batch-{batch id}-{number}`. A micro-batch that Spark repeats gets the same names again and replaces
what an unfinished commit left, so every row is in exactly one file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tailerd.errors import ConfigError, SinkError
from tailerd.records.json import JsonEncoder
from tailerd.sinks.file.owner import check_token
from tailerd.sinks.file.parts import close_durably, open_temporary
from tailerd.spark.change_rows import change_batches
from tailerd.spark.options import OutputFormat, WriteOptions
from tailerd.spark.worker_edge import all_errors_travel
from tailerd.storage.posix_files import sync_folder
from tailerd.storage.stores import Stores

_TEMPORARY = ".tailerd-{}.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles(WriterCommitMessage):
    """What one task wrote: names of temporary files in the folder, in the order of the rows."""

    partition: int
    names: tuple[str, ...]


@all_errors_travel
class TailerdFileWriter(DataSourceStreamArrowWriter):
    """Writes change rows into a folder as JSON lines or Parquet. Picklable."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._folder = _local_folder(options.path)
        self._owner = options.owner
        self._output = options.output
        self._max_bytes = options.max_bytes_per_file
        self._mode = options.file_mode

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows to temporary files, durably; on an executor.

        Raises:
            SinkError: The folder cannot be written.
        """
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        names: list[str] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write_files(iterator, names)
        except OSError as error:
            self._remove(names)
            raise _unwritable(self._folder, error) from error
        except BaseException:
            self._remove(names)
            raise
        return WrittenFiles(partition=partition, names=tuple(names))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give the files of a micro-batch their names, and forget what no message names.

        Raises:
            SinkFencedError: Another daemon claimed the folder since the query began.
            SinkError: The folder cannot be written.
        """
        try:
            if self._owner:
                check_token(self._folder, self._owner)
            self._publish(_names(messages), batchId)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the files of a micro-batch that failed."""
        self._remove(_names(messages))

    def _write_files(self, batches: Iterator[pa.RecordBatch], names: list[str]) -> None:
        file: _OpenFile | None = None
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if file is None:
                    names.append(_TEMPORARY.format(uuid.uuid4().hex))
                    file = self._open_file(self._folder / names[-1], batch.schema)
                file.write(batch)
                if file.size_bytes >= self._max_bytes:
                    file.close()
                    file = None
        finally:
            if file is not None:
                file.close()

    def _open_file(self, path: Path, schema: pa.Schema) -> _OpenFile:
        file = open_temporary(path, self._mode)
        is_lines = self._output is OutputFormat.JSONL
        return _JsonLines(file) if is_lines else _Parquet(file, schema)

    def _publish(self, names: Sequence[str], batch_id: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        prefix = batch_prefix(batch_id)
        published = set()
        for number, name in enumerate(names):
            final = f"{prefix}{number:05}.{self._output.value}"
            (self._folder / name).replace(self._folder / final)
            published.add(final)
        # An earlier try of this batch may have had more files, and killed tasks left theirs.
        for left in (*self._folder.glob(f"{prefix}*"), *self._folder.glob(_TEMPORARY.format("*"))):
            if left.name not in published:
                left.unlink(missing_ok=True)
        sync_folder(self._folder)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


def batch_prefix(batch_id: int) -> str:
    """Return what the names of a micro-batch's files begin with."""
    return f"batch-{batch_id:010}-"


class _OpenFile(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encoder = JsonEncoder()
        self.size_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for changes in change_batches(batch):
            self.size_bytes += self._file.write(self._encoder.encode_lines(changes))

    def close(self) -> None:
        with self._file:
            close_durably(self._file)


class _Parquet:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")

    @property
    def size_bytes(self) -> int:
        return self._file.tell()

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        with self._file:
            close_durably(self._file)


def _names(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    written = [message for message in messages if isinstance(message, WrittenFiles)]
    written.sort(key=lambda message: message.partition)
    return [name for message in written for name in message.names]


def _local_folder(path: str) -> Path:
    store, folder = Stores().locate(path)
    if not store.is_local_folder:
        raise ConfigError(
            f"{path} is no folder of this machine, and the file sink writes only there.",
            remedy="Give a folder that all executors see.",
        )
    return Path(folder)


def _unwritable(folder: Path, error: OSError) -> SinkError:
    return SinkError(
        f"The folder {folder} cannot be written: {error.strerror or error}.",
        remedy="Look at its permissions and the free space; executors must see the same folder.",
    )
