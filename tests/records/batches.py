"""Change batches for the tests of encoders."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.changefeed.row_positions import RowPositions

TIMESTAMP_US = 1_709_210_096_123_456
TIMESTAMP = "2024-02-29T12:34:56.123456Z"


def change_batch(
    columns: Mapping[str, pa.Array] | pa.RecordBatch,
    change: ChangeType | list[str] = ChangeType.INSERT,
    source: ChangeSourceKind = ChangeSourceKind.FILES,
    version: int = 7,
) -> ChangeBatch:
    rows = columns
    if not isinstance(rows, pa.RecordBatch):
        rows = pa.RecordBatch.from_arrays(list(rows.values()), names=list(rows))
    return ChangeBatch(
        rows=rows,
        change_type=pa.array(change, pa.string()) if isinstance(change, list) else change,
        version=Version(version),
        timestamp_us=TIMESTAMP_US,
        change_source=source,
        positions=RowPositions(table_id="id-1", files=0, rows=0),
    )
