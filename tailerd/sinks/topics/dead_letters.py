"""What is written instead of records that are too large for their topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.records.base import Records

TOO_LARGE = "record_too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecords:
    """Records of one table and topic that the topic does not take.

    Attributes:
        table, topic: Whose they are, and where they were to go.
        limit_bytes: What the topic takes.
        records: They, in order.
        versions: For each the version of its commit.
        sizes_bytes: For each its size in the topic's own measure.
    """

    table: str
    topic: str
    limit_bytes: int
    records: Records
    versions: Sequence[int]
    sizes_bytes: Sequence[int]

    def letters(self, max_bytes: int, room_bytes: int) -> Records:
        """Return the key of each, and its value where the topic of dead letters takes it.

        A key that alone is too large cannot be written anywhere, so it is left out.

        Args:
            max_bytes: The most that the topic of dead letters takes.
            room_bytes: What stands around key and value of a dead letter, headers included.
        """
        keys, values = self.records.keys, self.records.values
        sizes = pa.array(self.sizes_bytes, pa.int64())
        fits = pc.less_equal(pc.add(sizes, room_bytes), max_bytes)
        if keys is None:
            kept_keys = pa.nulls(len(values), pa.binary())
        else:
            key_fits = pc.less_equal(pc.add(pc.binary_length(keys), room_bytes), max_bytes)
            kept_keys = _kept(keys, key_fits)
        return Records(keys=kept_keys, values=_kept(values, fits))

    def reasons(self) -> dict[str, str | Sequence[int]]:
        """Return headers that say why, and where the row is found: one for all, or of each."""
        return {
            "tailerd.reason": TOO_LARGE,
            "tailerd.table": self.table,
            "tailerd.topic": self.topic,
            "tailerd.limit_bytes": str(self.limit_bytes),
            "tailerd.commit_version": self.versions,
            "tailerd.size_bytes": self.sizes_bytes,
        }


def _kept(texts: pa.Array, is_kept: pa.BooleanArray) -> pa.Array:
    return pc.if_else(is_kept, texts, pa.scalar(None, texts.type)).cast(pa.binary())
