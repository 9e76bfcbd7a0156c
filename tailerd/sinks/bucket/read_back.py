"""Read delivered rows back from the files of the manifest, as JSON lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailerd.changefeed.change_batch import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Offset, Version
from tailerd.sinks.bucket.delivery_files import DataFile, Target
from tailerd.sinks.bucket.manifest import Manifest, continues
from tailerd.sinks.resources import EncodeBatch
from tailerd.threads import in_thread

BLOCK_BYTES = 1 << 20
_ENTRIES = 64
"""Entries of the manifest that are read together."""
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


async def read_rows(
    target: Target, manifest: Manifest, encode: EncodeBatch
) -> AsyncGenerator[Sequence[bytes]]:
    """Yield each row as a JSON line, in the order of the deliveries.

    Rows that came again later, after a reset or in a new snapshot, are left out.
    """
    for file in await _find_files(manifest):
        with await in_thread(target.store.open_input, f"{target.root}/{file.path}") as source:
            groups = _read_file(source, file.path, encode)
            while (lines := await in_thread(next, groups, None)) is not None:
                yield lines


async def _find_files(manifest: Manifest) -> list[DataFile]:
    """Return the files of all deliveries since the rows began, in their order."""
    newest = await manifest.refresh()
    files: list[DataFile] = []
    before: Offset | None = None
    end = newest.number + 1 if newest else 1
    for first in range(1, end, _ENTRIES):
        for entry in await manifest.read_many(first, min(first + _ENTRIES, end)):
            start = entry.begin if entry.kind == "delivery" else entry.offset
            if start is not None and not continues(before, start):
                files.clear()
            files += entry.files
            before = entry.offset or before
    return files


def _read_file(source: BinaryIO, path: str, encode: EncodeBatch) -> Iterator[Sequence[bytes]]:
    if path.endswith(".parquet"):
        for rows in pq.ParquetFile(source).iter_batches():
            for batch in _split_commits(rows):
                yield encode(batch).splitlines()
        return
    name = next((name for end, name in _COMPRESSIONS.items() if path.endswith(end)), None)
    stream = pa.PythonFile(source, "r")
    if name is not None:
        stream = pa.CompressedInputStream(stream, name)
    rest = b""
    while block := stream.read(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield lines
    yield [rest] if rest else []


def _split_commits(rows: pa.RecordBatch) -> Iterator[ChangeBatch]:
    """Yield the rows of each commit: they follow each other in a file."""
    versions = rows.column(COMMIT_VERSION).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), rows.num_rows]
    values = rows.drop_columns([CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP])
    for start, end in pairwise(starts):
        yield ChangeBatch(
            rows=values.slice(start, end - start),
            change_type=rows.column(CHANGE_TYPE).slice(start, end - start),
            version=Version(int(versions[start])),
            timestamp_us=rows.column(COMMIT_TIMESTAMP)[start].value,
            change_source=ChangeSourceKind.FILES,
        )
