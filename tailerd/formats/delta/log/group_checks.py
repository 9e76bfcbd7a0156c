"""Checks row groups concurrently with copying them; nothing is published before the checks end.

The same bytes in memory are checked and copied, so overwriting the file in between has no effect.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, cast

import pyarrow as pa

from tailerd.formats.delta.log.checkpoint_entries import check_entries
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.log.row_groups import RowGroupFile, encoded, pages_of
from tailerd.formats.delta.protocol.checkpoint import IDENTITY_COLUMNS
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.reading.parquet_footer import Chunk

ROWS_AT_ONCE = 8192
"""More rows are not faster, and the allocator would keep their memory for the thread."""


class GroupChecks:
    """Compares the row groups of one checkpoint file with the expected keys.

    As a context manager it stops its thread. One row group is checked at a time; only its key
    columns are in memory.

    Args:
        name: Of the file, for error messages.
        root_url: The table's place, to recognise absolute paths below it.
        add_type: Of the `add` actions that are written.
    """

    def __init__(self, name: str, root_url: str, add_type: pa.StructType) -> None:
        self._name = name
        self._root_url = root_url
        self._type = _identity_of(add_type)
        self._blanks: dict[int, bytes] = {}
        self._pending: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="row-group-check")

    def __enter__(self) -> GroupChecks:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def begin(
        self, source: BinaryIO, columns: Mapping[str, Chunk], keys: KeyArray
    ) -> dict[str, bytes]:
        """Start checking a row group, after waiting for the check of the one before.

        Args:
            columns: Of the row group, by path; those of `source`.
            keys: Of its rows, shape (n,).

        Returns:
            The pages that are checked, by path of their column: to be copied unchanged.

        Raises:
            CorruptLogError, LogCleanedUpError: As `finish`, of the row group before.
        """
        self.finish()
        blank = self._blank(len(keys))
        pages = {
            path: pages_of(source, columns[path]) for path in IDENTITY_COLUMNS if path in columns
        }
        self._pending = self._pool.submit(self._check, columns, pages, blank, keys)
        return pages

    def finish(self) -> None:
        """Wait for the current check.

        Raises:
            CorruptLogError: The row group is damaged.
            LogCleanedUpError: It has other rows.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _blank(self, rows: int) -> bytes:
        """Return a file of empty columns, for columns missing from the row group."""
        if rows not in self._blanks:
            schema = pa.schema({"add": self._type})
            members = [pa.nulls(rows, item.type) for item in self._type]
            add = pa.StructArray.from_arrays(members, fields=list(self._type))
            # Almost all row groups of a file have the same size.
            self._blanks = {rows: encoded(pa.RecordBatch.from_arrays([add], schema=schema))}
        return self._blanks[rows]

    def _check(
        self,
        columns: Mapping[str, Chunk],
        pages: Mapping[str, bytes],
        blank: bytes,
        keys: KeyArray,
    ) -> None:
        chunks = {path: columns[path] for path in pages}
        body = io.BytesIO()
        file = RowGroupFile(body.write)
        # The source is empty: all columns were read already.
        file.copy(io.BytesIO(), chunks, blank, len(keys), pages)
        file.close()
        source = cast(BinaryIO, pa.BufferReader(body.getbuffer()))
        with CheckpointFile(source, self._name) as rows:
            for batch in rows.rows_here(("add",), ROWS_AT_ONCE):
                wanted, keys = keys[: batch.num_rows], keys[batch.num_rows :]
                check_entries(batch.column("add"), wanted, self._name, self._root_url)


def _identity_of(add_type: pa.StructType) -> pa.StructType:
    """Return the part of the type that has the `IDENTITY_COLUMNS`."""
    members = []
    for item in add_type:
        if f"add.{item.name}" in IDENTITY_COLUMNS:
            members.append(item)
        elif pa.types.is_struct(item.type):
            leaves = [
                leaf for leaf in item.type if f"add.{item.name}.{leaf.name}" in IDENTITY_COLUMNS
            ]
            members += [item.with_type(pa.struct(leaves))] if leaves else []
    return pa.struct(members)
