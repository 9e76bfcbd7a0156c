"""What was delivered of one table in one micro-batch, counted by tasks and summed up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow.compute as pc

from tailerd.changefeed.change_batch import CHANGE_TYPE
from tailerd.spark.encoded_records import KEY, VALUE, RecordPiece
from tailerd.spark.group.deliveries import TableDelivery


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was delivered of one table; picklable.

    Attributes:
        rows: Records by change type, tombstones not counted.
        versions: First and last version of the commits they are of.
        size_bytes: Of keys and values.
        dead_letters: Topic -> records that were too large, and are there instead.
    """

    rows: Counter[str] = field(default_factory=Counter)
    versions: tuple[int, int] | None = None
    size_bytes: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)

    def count(self, piece: RecordPiece) -> None:
        """Count encoded records of this table."""
        records = piece.records
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
