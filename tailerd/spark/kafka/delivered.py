"""What one micro-batch delivered, by table: told to the supervisor, kept with the batch. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_VERSION
from tailerd.spark.encoded_records import KEY, VALUE


@dataclass(slots=True, kw_only=True)
class TableDelivery:
    """What was delivered of one table.

    Attributes:
        rows: Records by change type, tombstones not counted.
        first_version, last_version: Of the commits they are of.
        bytes: Of keys and values.
        dead_letters: Topic -> records that were too large, and are there instead.
    """

    rows: Counter[str] = field(default_factory=Counter)
    first_version: int | None = None
    last_version: int | None = None
    bytes: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)

    def count(self, records: pa.RecordBatch) -> None:
        """Count encoded records of this table; at least one."""
        is_row = pc.is_valid(records[VALUE])
        kinds = pc.value_counts(records[CHANGE_TYPE].filter(is_row))
        for each in kinds.to_pylist():
            self.rows[each["values"]] += each["counts"]
        ends = pc.min_max(records[COMMIT_VERSION]).as_py()
        self._reach(ends["min"], ends["max"])
        for column in (KEY, VALUE):
            self.bytes += pc.sum(pc.binary_length(records[column])).as_py() or 0

    def add(self, other: TableDelivery) -> None:
        """Count what another task delivered."""
        self.rows.update(other.rows)
        self.dead_letters.update(other.dead_letters)
        self.bytes += other.bytes
        if other.first_version is not None and other.last_version is not None:
            self._reach(other.first_version, other.last_version)

    def _reach(self, first: int, last: int) -> None:
        known = self.first_version, self.last_version
        self.first_version = first if known[0] is None else min(first, known[0])
        self.last_version = last if known[1] is None else max(last, known[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDelivery:
    """What one micro-batch delivered.

    Attributes:
        batch_id: Spark's number of it.
        tables: By name; those without records are not among them.
        is_repeat: It was delivered before: Spark gave it again, and nothing was written now.
        duration_seconds: From the call until everything counted; 0 for a repeat.
    """

    batch_id: int
    tables: Mapping[str, TableDelivery]
    is_repeat: bool = False
    duration_seconds: float = 0.0


def summed(parts: Iterable[Mapping[str, TableDelivery]]) -> dict[str, TableDelivery]:
    """Return what all tasks delivered together."""
    tables: dict[str, TableDelivery] = {}
    for part in parts:
        for name, delivery in part.items():
            tables.setdefault(name, TableDelivery()).add(delivery)
    return tables


def to_json(tables: Mapping[str, TableDelivery]) -> str:
    """Return the deliveries as text."""
    return json.dumps(
        {
            name: {
                "rows": each.rows,
                "first_version": each.first_version,
                "last_version": each.last_version,
                "bytes": each.bytes,
                "dead_letters": each.dead_letters,
            }
            for name, each in tables.items()
        }
    )


def from_json(text: str) -> dict[str, TableDelivery]:
    """Return what `to_json` wrote.

    Raises:
        ValueError, KeyError: It did not write this.
    """
    return {
        name: TableDelivery(
            rows=Counter(fields["rows"]),
            first_version=fields["first_version"],
            last_version=fields["last_version"],
            bytes=fields["bytes"],
            dead_letters=Counter(fields["dead_letters"]),
        )
        for name, fields in json.loads(text).items()
    }
