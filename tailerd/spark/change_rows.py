"""Record batches that come back from Spark, as the change batches that encoders take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Version
from tailerd.errors import SinkError
from tailerd.spark.arrow_schema import variants_marked


def change_batches(batch: pa.RecordBatch) -> Iterator[ChangeBatch]:
    """Cut a batch where the commit changes, in the order of its rows.

    Raises:
        SinkError: A change column is missing.
    """
    missing = [name for name in CHANGE_COLUMNS if name not in batch.schema.names]
    if missing:
        raise SinkError(
            f"These rows have no column {', '.join(missing)}, so they are no change rows.",
            remedy='Write the rows of spark.readStream.format("tailerd"), with its last three'
            " columns.",
        )
    if batch.num_rows == 0:
        return
    versions = batch.column(COMMIT_VERSION).to_numpy(zero_copy_only=False)
    micros = batch.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_numpy(zero_copy_only=False)
    rows = variants_marked(batch.drop_columns(list(CHANGE_COLUMNS)))
    cuts = np.flatnonzero(np.diff(versions)) + 1
    for start, stop in zip([0, *cuts], [*cuts, batch.num_rows], strict=True):
        count = int(stop - start)
        yield ChangeBatch(
            rows=rows.slice(start, count),
            change_type=batch.column(CHANGE_TYPE).slice(start, count),
            version=Version(int(versions[start])),
            timestamp_us=int(micros[start]),
            # Spark's rows do not say how they were found, and no file format shows it.
            change_source=ChangeSourceKind.NONE,
        )
