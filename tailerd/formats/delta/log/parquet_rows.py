"""Reads rows of checkpoint files: only the requested columns, decoded one batch ahead."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES, BatchLimit
from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.protocol.log_path import SIDECAR_FOLDER, LogFile
from tailerd.reading.legacy_calendar import LegacyCalendar
from tailerd.reading.parquet_batches import BoundedBatches
from tailerd.reading.parquet_open import open_parquet, to_arrow
from tailerd.reading.read_ahead import read_ahead
from tailerd.remedies import KEEP_CHECKPOINT
from tailerd.storage.base import RemoteFile

if TYPE_CHECKING:
    from tailerd.formats.delta.log.log_folder import LogFolder

BATCH_ROWS = 16_384
FEWER_ROWS = 4_096
"""For rows that are converted to objects or read with statistics: at least half a kilobyte each."""
BUFFER_BYTES = 1024 * 1024
"""Bytes read at a time from each column, instead of its whole chunk of a row group."""


class CheckpointFile:
    """One open Parquet file of a checkpoint.

    Args:
        source: At any position; closed by `close`.
        name: For error messages.
        memory_bytes: The configured `memory`, which batches must not exceed.

    Raises:
        CorruptLogError: The file is not Parquet, or torn.
        TooLargeError: Its footer does not fit the memory.
    """

    def __init__(
        self, source: BinaryIO, name: str, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> None:
        self.name = name
        self._source = source
        self._limit = BatchLimit(memory_bytes=memory_bytes)
        with self._map_errors():
            self._opened = open_parquet(
                source, memory_bytes, f"the checkpoint file {name}", **self._options()
            )
            self._file, self._groups = self._opened.file, self._opened.footer.groups
            schema = self._file.schema
            self._leaves = [schema.column(index).path for index in range(len(schema))]
        self._check_has_files()

    @classmethod
    def open(cls, log: LogFolder, file: LogFile) -> CheckpointFile:
        """Open a file of a log; blocking.

        Raises:
            CorruptLogError, TooLargeError, FileMissingError: It cannot be read.
        """
        return cls(log.store.open_input(log.resolve_path(file)), file.name, log.memory_bytes)

    def _options(self) -> dict[str, Any]:
        is_remote = isinstance(self._source, RemoteFile)
        return {
            "pre_buffer": is_remote,
            "buffer_size": 0 if is_remote else BUFFER_BYTES,
            # For Spark's statistics; nanoseconds would overflow outside the years 1677 to 2262.
            "coerce_int96_timestamp_unit": "us",
            "page_checksum_verification": True,
        }

    def _reopen(self, source: BinaryIO, **options: Any) -> pq.ParquetFile:
        return pq.ParquetFile(to_arrow(source), **self._options() | options)

    def _check_has_files(self) -> None:
        """Reject a Parquet file that is not a checkpoint: its files would be lost silently."""
        has_adds = "add.path" in self._leaves
        is_lacking = not has_adds and any(leaf.split(".")[0] == "add" for leaf in self._leaves)
        is_sidecar = self.name.startswith(f"{SIDECAR_FOLDER}/")
        if is_lacking or (is_sidecar and not has_adds and "remove.path" not in self._leaves):
            raise CorruptLogError(
                f"{self.name} is not a checkpoint file: it has no column add.path.",
                remedy=KEEP_CHECKPOINT,
            )

    @property
    def calendar(self) -> LegacyCalendar | None:
        """The calendar of its old dates and times; None for the modern one."""
        return LegacyCalendar.from_notes(self._opened.footer.notes)

    @property
    def source(self) -> BinaryIO:
        """The open file; rows must not be decoded while it is read."""
        return self._source

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    def __enter__(self) -> CheckpointFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def column_type(self, name: str) -> pa.DataType | None:
        """Return the type of a top-level column; None if it does not exist."""
        schema = self._file.schema_arrow
        return stored_type(schema.field(name).type) if name in schema.names else None

    def count_values(self, leaf: str) -> int | None:
        """Return how many rows have a value in a leaf; None if statistics are missing."""
        if leaf not in self._leaves:
            return 0
        index, found = self._leaves.index(leaf), 0
        for group in self._groups:
            null_count = self._opened.footer.statistics(group.chunks[index]).null_count
            if null_count is None:
                return None
            found += group.chunks[index].num_values - null_count
        return found

    def rows(
        self, columns: Iterable[str], batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield every row with those of `columns` (leaves or whole groups) that exist.

        A batch has at most `batch_rows` rows; without any such column it still has their number.

        Raises:
            CorruptLogError: The file is damaged.
        """
        return self._read(columns, None, batch_rows)

    def rows_here(self, columns: Iterable[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield rows as `rows` does, decoded in the calling thread.

        Raises:
            CorruptLogError: The file is damaged.
        """
        with self._map_errors():
            yield from self._batches(self._present(columns), None, batch_rows)

    def rows_with(
        self, columns: Iterable[str], probes: Iterable[str], batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row groups in which one of the leaves `probes` has a value.

        Writers put all non-file actions together, so this skips almost everything.

        Raises:
            CorruptLogError: The file is damaged.
        """
        indexes = [self._leaves.index(leaf) for leaf in probes if leaf in self._leaves]
        groups = [
            group
            for group in range(self.num_groups)
            if any(self._may_have(group, index) for index in indexes)
        ]
        return self._read(columns, groups, batch_rows) if groups else iter(())

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return len(self._groups)

    def rows_by_group(self) -> tuple[int, ...]:
        """Return the number of rows of each row group."""
        return tuple(group.num_rows for group in self._groups)

    def read_groups(
        self, groups: list[int], columns: Iterable[str], batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the given row groups, as `rows` does.

        Raises:
            CorruptLogError: The file is damaged.
        """
        return self._read(columns, groups, batch_rows)

    def _may_have(self, group: int, column: int) -> bool:
        chunk = self._groups[group].chunks[column]
        null_count = self._opened.footer.statistics(chunk).null_count
        return null_count is None or null_count < chunk.num_values

    def _read(
        self, columns: Iterable[str], groups: list[int] | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        present = self._present(columns)
        with self._map_errors():
            batches = self._batches(present, groups, batch_rows)
            yield from read_ahead(batches, lambda batch: batch.nbytes)

    def _batches(
        self, present: list[str], groups: list[int] | None, batch_rows: int
    ) -> Generator[pa.RecordBatch, None, None]:
        numbers = list(range(self.num_groups)) if groups is None else groups
        leaves = [self._leaves.index(leaf) for leaf in present]
        found = map(_as_stored, self._decode_groups(numbers, leaves, batch_rows))
        if (calendar := self.calendar) is None:
            yield from found
            return
        types = self._opened.physical_types(leaves)
        yield from (calendar.rebase(batch, types) for batch in found)

    def _decode_groups(
        self, numbers: list[int], leaves: list[int], batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        batches = BoundedBatches(
            self._opened,
            self._reopen,
            self._source,
            f"the checkpoint file {self.name}",
            self._limit,
        )
        for group in numbers:
            self._opened.check_readable(group, leaves)
        if all(batches.is_small(group, leaves) for group in numbers):
            yield from self._file.reader.iter_batches(
                batch_rows, row_groups=numbers, column_indices=leaves, use_threads=False
            )
            return
        for group in numbers:
            yield from batches.rows(group, [leaves], batch_rows)

    def _present(self, columns: Iterable[str]) -> list[str]:
        requested = tuple(columns)
        return [
            leaf
            for leaf in self._leaves
            if any(leaf == column or leaf.startswith(f"{column}.") for column in requested)
        ]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._source.close()

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError, UnsupportedFeatureError) as error:
            raise CorruptLogError(
                f"The checkpoint file {self.name} cannot be read: {error}.",
                remedy=KEEP_CHECKPOINT,
            ) from error


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type without views and dictionaries.

    Writers on Arrow store their own types in a file. They do not describe its Parquet types.
    """
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return stored_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([item.with_type(stored_type(item.type)) for item in kind])
    if types.is_map(kind):
        key, value = (
            item.with_type(stored_type(item.type)) for item in (kind.key_field, kind.item_field)
        )
        return pa.map_(key, value)
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    return kind


def _as_stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    fields = [item.with_type(stored_type(item.type)) for item in batch.schema]
    schema = pa.schema(fields, batch.schema.metadata)
    return batch if schema.types == batch.schema.types else batch.cast(schema)
