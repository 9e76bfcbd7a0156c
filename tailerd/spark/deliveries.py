"""What one batch of encoded records brought of each table: counted by tasks, told by sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tailerd.changefeed.change_batch import CHANGE_TYPE
from tailerd.spark.encoded_records import KEY, VALUE, RecordPiece
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


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was delivered of one table; picklable.

    Attributes:
        rows: Records by change type, tombstones not counted.
        versions: First and last version of the commits they are of.
        size_bytes: Of keys and values.
        dead_letters: Topic and reason -> records that are there instead.
    """

    rows: Counter[str] = field(default_factory=Counter)
    versions: tuple[int, int] | None = None
    size_bytes: int = 0
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, piece: RecordPiece) -> None:
        """Count encoded records of this table."""
        records = piece.records
        if piece.reason:
            self.dead_letters[piece.topic, piece.reason] += records.num_rows
        is_row = pc.is_valid(records[VALUE])
        for each in pc.value_counts(records[CHANGE_TYPE].filter(is_row)).to_pylist():
            self.rows[each["values"]] += each["counts"]
        self._reach((piece.version, piece.version))
        for column in (KEY, VALUE):
            self.size_bytes += pc.sum(pc.binary_length(records[column])).as_py() or 0

    def add(self, other: Tally) -> None:
        """Count what another task delivered."""
        self.rows.update(other.rows)
        self.dead_letters.update(other.dead_letters)
        self.size_bytes += other.size_bytes
        if other.versions is not None:
            self._reach(other.versions)

    def delivery(self, table: str) -> TableDelivery:
        """Return it as sinks tell it."""
        first, last = self.versions or (0, 0)
        return TableDelivery(
            table=table,
            rows=dict(self.rows),
            first_version=first,
            last_version=last,
            size_bytes=self.size_bytes,
        )

    def _reach(self, versions: tuple[int, int]) -> None:
        known = self.versions or versions
        self.versions = min(known[0], versions[0]), max(known[1], versions[1])


def summed(parts: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return what all tasks delivered together."""
    tables: dict[str, Tally] = {}
    for part in parts:
        for name, tally in part.items():
            tables.setdefault(name, Tally()).add(tally)
    return tables
