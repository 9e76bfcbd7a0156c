"""Counts rows of data files by their footers: metadata files have no row counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import TailerdError
from tailerd.formats.kartothek.dataset import DatasetAddress
from tailerd.reading.parquet_open import open_parquet
from tailerd.storage.base import ObjectStore

MAX_FOOTERS = 1000
"""Rows of more files are not counted, because each file has to be opened."""


async def count_rows(
    store: ObjectStore, address: DatasetAddress, keys: Sequence[str]
) -> list[int] | None:
    """Return the rows of files; None if there are too many files, or one cannot be read."""
    if len(keys) > MAX_FOOTERS:
        return None
    try:
        return await asyncio.to_thread(lambda: [_rows(store, address.path(key)) for key in keys])
    except (pa.ArrowException, OSError, TailerdError):
        return None


def _rows(store: ObjectStore, path: str) -> int:
    with store.open_input(path) as file:
        footer = open_parquet(file, DEFAULT_MEMORY_BYTES, path).footer
        return sum(group.num_rows for group in footer.groups)
