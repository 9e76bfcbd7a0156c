"""What a sink of encoded records tells of one batch, table by table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from tailerd.spark.progress import ENGINE
from tailerd.telemetry.events import DeliveryAcknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelivery:
    """What one batch brought of one table.

    Attributes:
        rows: By `_change_type`; tombstones are no rows.
        first_version, last_version: Of those rows.
        size_bytes: Of keys and values.
    """

    table: str
    rows: Mapping[str, int]
    first_version: int
    last_version: int
    size_bytes: int

    def event(self, sink: str, duration_seconds: float) -> DeliveryAcknowledged:
        """Return it as the event every engine tells."""
        return DeliveryAcknowledged(
            table=self.table,
            sink=sink,
            engine=ENGINE,
            start_version=self.first_version,
            end_version=self.last_version,
            rows=dict(self.rows),
            bytes=self.size_bytes,
            duration_seconds=duration_seconds,
        )


class RecordSink(Protocol):
    """Writes batches of encoded records; blocking, in the daemon's process.

    A batch that is written again, with the same id, replaces what the first try left, or writes
    nothing where that was complete.
    """

    def recover(self) -> object:
        """Settle what a predecessor left; called before each start of the query.

        Raises:
            TailerdError: No batch could be written.
        """
        ...

    def write(self, records: DataFrame, batch_id: int) -> Iterable[TableDelivery]:
        """Write a batch; when this returns, it is durable.

        Raises:
            TailerdError: It is not; where one table is at fault, marked with it.
        """
        ...

    def close(self) -> None:
        """Free what it holds; it may be recovered again."""
        ...
