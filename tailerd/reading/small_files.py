"""Reads runs of small files together: one call of Arrow decodes them with all processors.

A thread has Python's lock while it opens a file, and the other readers wait. So small files are
only checked here; opening and decoding them is left to Arrow, for as many as are alike.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from tailerd.changefeed.limits import BatchLimit, largest_piece_bytes
from tailerd.errors import TailerdError
from tailerd.reading.file_scan import WHOLE_FILE, FileScan
from tailerd.reading.parquet import (
    PAGE_OPTIONS,
    TYPE_OPTIONS,
    FileRows,
    OpenFile,
    Shape,
    coded_columns,
    name_file,
    open_scanned,
    read_file,
    split_part,
    with_whole_pairs,
)
from tailerd.reading.parquet_batches import proven_bytes
from tailerd.reading.parquet_chunks import FileFooter, parse_footer
from tailerd.reading.parquet_open import OpenedParquet, read_footer_bytes, to_arrow

MIN_FILES = 4
"""Fewer take longer together."""

MAX_FOOTER_BYTES = 32 * 1024
"""A longer footer describes many columns, and is not read twice."""

MAX_KINDS = 4
"""Of files in a run: such as change files and data files, with a schema that changed meanwhile."""


def read_files(
    scans: Iterable[FileScan], count: int, limit: BatchLimit, open_file: OpenFile
) -> Iterator[tuple[int, FileRows]]:
    """Read the rows of scans in order, as `read_file` does of each, with the number of its scan.

    Args:
        count: Number of scans.

    Raises:
        TailerdError: As `read_file`, and errors of `scans`, after the rows before it.
    """
    if count < MIN_FILES:
        for each in enumerate(scans):
            yield from _read_alone(*each, limit, open_file)
        return
    run = _Run(limit)
    numbered = enumerate(scans)
    while True:
        try:
            number, scan = next(numbered, (0, None))
            source = None if scan is None else open_file(scan.url)
        except TailerdError:
            yield from run.take()
            raise
        if scan is None or source is None:
            yield from run.take()
            return
        if run.add(number, scan, source):
            continue
        yield from run.take()
        if not run.add(number, scan, source):
            yield from _read_alone(number, scan, limit, _reopen(source))


def _read_alone(
    number: int, scan: FileScan, limit: BatchLimit, open_file: OpenFile
) -> Iterator[tuple[int, FileRows]]:
    return ((number, rows) for rows in read_file(scan, limit, open_file))


def _reopen(source: BinaryIO) -> OpenFile:
    """Return what opens a file that is open already."""
    return lambda _: source


class _Run:
    """Files that fit the memory together, whatever their pages contain."""

    def __init__(self, limit: BatchLimit) -> None:
        self._limit = limit
        self._files: list[_File] = []
        self._kinds: list[AlikeFile] = []
        self._left = 0

    def add(self, number: int, scan: FileScan, source: BinaryIO) -> bool:
        """Add a file; return whether it fits this run."""
        if not isinstance(source, io.BytesIO) or scan.select_rows or scan.share != WHOLE_FILE:
            return False
        if not self._files:
            self._left = largest_piece_bytes(self._limit.memory_bytes)
        try:
            alike = self._find_kind(source, scan)
            size = None if alike is None else alike.most_bytes(source, self._left)
        except (pa.ArrowException, OSError, TailerdError):
            # Read alone, it is refused with the reason.
            return False
        if alike is None or size is None:
            return False
        self._left -= size
        self._files.append(_File(number, source, alike))
        return True

    def _find_kind(self, source: BinaryIO, scan: FileScan) -> AlikeFile | None:
        body, end = read_footer_bytes(source, self._limit.memory_bytes, scan.url)
        if len(body) > MAX_FOOTER_BYTES:
            return None
        if self._kinds:
            like = self._kinds[-1].opened.footer
            footer = parse_footer(body, self._limit.memory_bytes, scan.url, like=like)
            for kind in self._kinds:
                if kind.is_like(footer, scan):
                    return kind.with_footer(footer, scan, end)
        if len(self._kinds) == MAX_KINDS:
            return None
        self._kinds.append(AlikeFile.open(source, scan, self._limit, len(self._kinds)))
        return self._kinds[-1]

    def take(self) -> Iterator[tuple[int, FileRows]]:
        """Yield the rows of the files, and begin another run."""
        files, self._files, self._kinds = self._files, [], []
        decoded: dict[int, list[pa.RecordBatch]] = {}
        for kind in {file.alike.kind for file in files}:
            some = [file for file in files if file.alike.kind == kind]
            # If one is damaged, each is read alone: the others are delivered, and it is named.
            with suppress(pa.ArrowException, OSError):
                decoded |= decode_together(some, self._limit.max_rows)
        for number, source, alike in files:
            batches = decoded.pop(number, None)
            if batches is None:
                yield from _read_alone(number, alike.scan, self._limit, _reopen(source))
                continue
            with name_file(alike.scan.url):
                parts = alike.make_parts(batches, self._limit)
                yield from ((number, part) for part in with_whole_pairs(parts))


@dataclass(frozen=True, slots=True)
class AlikeFile:
    """One of several files with the same columns, opened only once for all of them."""

    scan: FileScan
    opened: OpenedParquet
    shape: Shape
    kind: int

    @classmethod
    def open(cls, source: BinaryIO, scan: FileScan, limit: BatchLimit, kind: int) -> AlikeFile:
        """Open the first file of a kind."""
        opened = open_scanned(source, scan, limit)
        return cls(scan, opened, Shape(scan, opened), kind)

    def is_like(self, footer: FileFooter, scan: FileScan) -> bool:
        """Return whether a file has the same columns, of which the same ones are read."""
        return footer.is_like(self.opened.footer) and _are_alike(scan, self.scan)

    def with_footer(self, footer: FileFooter, scan: FileScan, size_bytes: int) -> AlikeFile:
        """Return another file of the kind."""
        opened = replace(self.opened, footer=footer, size_bytes=size_bytes)
        is_same = all(one is two for one, two in zip(scan.fields, self.scan.fields, strict=True))
        shape = self.shape if is_same else Shape(scan, opened)
        return AlikeFile(scan, opened, shape, self.kind)

    @property
    def num_rows(self) -> int:
        """Rows of the file, by its footer."""
        return sum(group.num_rows for group in self.opened.footer.groups)

    def most_bytes(self, source: BinaryIO, left: int) -> int | None:
        """Return the maximum size of its rows; None if it may exceed `left`.

        None also if its columns cannot be found by their names.
        """
        if not self.shape.has_clear_names:
            return None
        total = self.shape.constant_bytes * self.num_rows
        for group in range(len(self.opened.footer.groups)):
            self.opened.check_readable(group, self.shape.leaves)
            sizes = proven_bytes(
                self.opened, group, self.shape.leaves, source, left - total, self.shape.coded
            )
            for size in sizes:
                if size is None:
                    return None
                total += size
        return total if total <= left else None

    def make_parts(
        self, batches: Iterable[pa.RecordBatch], limit: BatchLimit
    ) -> Iterator[FileRows]:
        """Yield the rows of the file's batches."""
        at = 0
        for batch in batches:
            rows, changes = self.shape.make_part(batch, at)
            yield from split_part(FileRows(rows, changes, at), limit)
            at += batch.num_rows


class _File(NamedTuple):
    number: int
    source: io.BytesIO
    alike: AlikeFile


def _are_alike(scan: FileScan, other: FileScan) -> bool:
    """Return whether two scans read the same columns; their constants may differ."""
    return (
        len(scan.fields) == len(other.fields)
        and scan.change_column == other.change_column
        and scan.table_names is other.table_names
        and all(
            one is two or (one.constant is not None and two.constant is not None)
            for one, two in zip(scan.fields, other.fields, strict=True)
        )
    )


def decode_together(files: Sequence[_File], max_rows: int) -> dict[int, list[pa.RecordBatch]]:
    """Return the batches of each file by its number; of none if they are too few.

    Raises:
        pyarrow.ArrowException, OSError: A file is damaged.
    """
    if len(files) < MIN_FILES:
        return {}
    # Not loaded with this module: most commands read no small files.
    import pyarrow.dataset as ds

    first = files[0].alike
    form = ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(
            dictionary_columns=coded_columns(first.scan.change_column), **TYPE_OPTIONS
        ),
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(
            pre_buffer=False, **PAGE_OPTIONS
        ),
    )
    parts = [form.make_fragment(to_arrow(file.source)) for file in files]
    schema = first.opened.file.schema_arrow
    scanner = ds.FileSystemDataset(parts, schema, form).scanner(
        columns=list(first.shape.names), batch_size=max_rows
    )
    batches = iter(scanner.to_table().to_batches())
    found: dict[int, list[pa.RecordBatch]] = {}
    for file in files:
        own = found[file.number] = []
        left = file.alike.num_rows
        while left:
            batch = next(batches, None)
            if batch is None or batch.num_rows > left:
                raise pa.ArrowInvalid("a row group has other rows than its footer says")
            own.append(batch)
            left -= batch.num_rows
    return found
