"""Any `Sink` behind a query of one table: the driver delivers each micro-batch through it.

Rows of a micro-batch go through the driver's memory, so this is for sinks whose rows executors
cannot write. Spark repeats a micro-batch that it has not committed: it is delivered again with the
same offsets, at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.config import TableConfig
from tailerd.errors import ConfigError
from tailerd.sinks.base import Delivery, Fencer, Sink
from tailerd.sinks.opening import open_sink
from tailerd.spark.change_rows import change_batches
from tailerd.spark.checkpoints import batch_end
from tailerd.spark.source_loop import SourceLoop
from tailerd.spark.spark_offset import OffsetFields, batch_start, offset_of
from tailerd.spark.worker_edge import errors_travel
from tailerd.telemetry import Telemetry


class DriverSink:
    """Delivers the micro-batches of one table's query. Blocking; one call at a time."""

    def __init__(
        self, table: str, config: TableConfig, checkpoint: Path, telemetry: Telemetry, daemon: str
    ) -> None:
        """Prepare; the sink is opened by the first micro-batch.

        Args:
            table: The configured name.
            config: The table's section; its sink has an implementation.
            checkpoint: Of the query: it says between which offsets a micro-batch lies.
            telemetry: As everywhere.
            daemon: `name` of the configuration.
        """
        self._table = table
        self._config = config
        self._checkpoint = checkpoint
        self._telemetry = telemetry
        self._daemon = daemon
        self._loop: SourceLoop | None = None
        self._sink: Sink | None = None
        self._is_resumed = False

    @errors_travel
    def write(self, changes: DataFrame, batch_id: int) -> None:
        """Deliver a micro-batch, as `foreachBatch` gives it.

        Raises:
            TailerdError: It does not count; Spark repeats it.
        """
        end = self._end(batch_id)
        before: OffsetFields = self._end(batch_id - 1) if batch_id else {"is_initial": True}
        # `toArrow` would do, but it cannot cast a variant that is null.
        rows: Sequence[pa.RecordBatch] = changes._collect_as_arrow()  # type: ignore[operator]
        if self._loop is None:
            self._loop = SourceLoop()
        self._loop.call(self._deliver(batch_start(before, end), offset_of(end), rows))

    def close(self) -> None:
        """Close the sink; idempotent. Another micro-batch opens it again."""
        loop, self._loop = self._loop, None
        sink, self._sink = self._sink, None
        self._is_resumed = False
        if loop is not None:
            try:
                if sink is not None:
                    loop.call(sink.aclose())
            finally:
                loop.close()

    def _end(self, batch_id: int) -> OffsetFields:
        return cast("OffsetFields", batch_end(self._checkpoint, batch_id))

    async def _deliver(self, start: Offset, end: Offset, rows: Sequence[pa.RecordBatch]) -> None:
        sink = self._sink or await self._open()
        if not self._is_resumed:
            await sink.resume(start)
        # Whatever ends a write early, the next one begins with `resume`.
        self._is_resumed = False
        await sink.write(
            Delivery(
                table=self._table,
                start=start,
                end=end,
                saved=SavedOffset(offset=end, changes=ChangeMode(self._config.changes)),
                batches=_batches(rows),
            )
        )
        self._is_resumed = True

    async def _open(self) -> Sink:
        config = self._config.sink
        sink = open_sink(self._table, config, self._telemetry, daemon=self._daemon)
        if sink is None or sink.offsets is not None:
            raise ConfigError(
                f"The Spark engine cannot write to a sink of kind {config.kind!r}, because it"
                " keeps offsets itself.",
                remedy="Set the table option `engine: arrow`.",
            )
        if isinstance(sink, Fencer):
            await sink.fence()
        self._sink = sink
        return sink


async def _batches(rows: Sequence[pa.RecordBatch]) -> AsyncIterator[ChangeBatch]:
    for each in rows:
        for batch in change_batches(each):
            yield batch
