"""Resizes batches: many small ones are slow to encode, large ones need memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tailerd.changefeed.change_batch import join_columns
from tailerd.changefeed.limits import BatchLimit

_SHARE = 8
"""A batch of at least 1/8 of the limit is returned without merging."""


def merge_batches(batches: Iterable[pa.RecordBatch], limit: BatchLimit) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches of one schema in order: small ones merged, large ones split."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for part in cut(batch, limit):
            held.append(part)
            rows += part.num_rows
            size += part.get_total_buffer_size()
            if rows >= limit.max_rows // _SHARE or size >= limit.max_bytes // _SHARE:
                yield _one(held)
                held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) > 1 and not held[0].num_columns:
        return join_columns([], held[0].schema, sum(each.num_rows for each in held))
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def cut(rows: pa.RecordBatch, limit: BatchLimit) -> Iterator[pa.RecordBatch]:
    """Yield rows, split if they exceed the limit; no empty batch."""
    size = rows.get_total_buffer_size()
    pieces = max(-(-size // limit.max_bytes), -(-rows.num_rows // limit.max_rows))
    step = max(1, -(-rows.num_rows // max(1, pieces)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)
