"""Build dead letters for records that are too large for their topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.pipeline_names import table_of
from tailerd.records.base import Records

TOO_LARGE = "record_too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class OversizeRecords:
    """Records of one table that are too large for their topic.

    Attributes:
        table, topic: Source and destination of the records.
        limit_bytes: The topic's limit.
        records: The records, in order.
        versions: Commit version of each record.
        sizes_bytes: Size of each record, as compared with the topic's limit.
    """

    table: str
    topic: str
    limit_bytes: int
    records: Records
    versions: Sequence[int]
    sizes_bytes: Sequence[int]

    def letters(self, max_bytes: int, room_bytes: int) -> Records:
        """Return the key of each record, and its value if it fits the dead-letter topic.

        A key that is too large by itself is left out.

        Args:
            max_bytes: Limit of the dead-letter topic.
            room_bytes: Size of a dead letter in addition to key and value, including headers.
        """
        keys, values = self.records.keys, self.records.values
        sizes = pa.array(self.sizes_bytes, pa.int64())
        fits = pc.less_equal(pc.add(sizes, room_bytes), max_bytes)
        if keys is None:
            kept_keys = pa.nulls(len(values), pa.binary())
        else:
            key_fits = pc.less_equal(pc.add(pc.binary_length(keys), room_bytes), max_bytes)
            kept_keys = _select_texts(keys, key_fits)
        return Records(keys=kept_keys, values=_select_texts(values, fits))

    def reasons(self) -> dict[str, str | Sequence[int]]:
        """Return headers with the reason and the row's origin: one for all, or one per record."""
        return {
            "tailerd.reason": TOO_LARGE,
            "tailerd.table": table_of(self.table),
            "tailerd.topic": self.topic,
            "tailerd.limit_bytes": str(self.limit_bytes),
            "tailerd.commit_version": self.versions,
            "tailerd.size_bytes": self.sizes_bytes,
        }


def _select_texts(texts: pa.Array, is_kept: pa.BooleanArray) -> pa.Array:
    return pc.if_else(is_kept, texts, pa.scalar(None, texts.type)).cast(pa.binary())
