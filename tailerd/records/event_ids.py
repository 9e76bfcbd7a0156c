"""Deterministic ids of records, with which a consumer can deduplicate.

A repeated delivery has the same records in the same order, but may have other batch boundaries. A
consumer that keeps the ids it has processed, or the last one of each partition, can skip
duplicates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import BugError
from tailerd.records.base import Header, RecordFormat, Records, SchemaRegistry

ID_HEADER = "tailerd.id"
_TOMBSTONE = "/tombstone"


def record_ids(batch: ChangeBatch, records: Records) -> pa.Array:
    """Return the id of each record, as a `string` array.

    It is the id of its row, for an update that of the newer image. A tombstone's id has a suffix,
    because the delete before it has the same row.

    Raises:
        BugError: The batch has no row positions.
    """
    ids = batch.ids()
    if ids is None:
        raise BugError(
            "These rows have no ids, because their reader does not provide row positions.",
            remedy="Set `event_ids: false`, and report it to the maintainers of the table format.",
        )
    found = records.from_rows(ids)
    if not records.values.null_count:
        return found
    tombstones = pc.binary_join_element_wise(found, _TOMBSTONE, "")
    return pc.if_else(records.values.is_valid(), found, tombstones)


def newest_ids(
    batch: ChangeBatch, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]
) -> pa.Array | None:
    """Return the ids of changes by the rows of their images; a negative row means no image.

    None if the batch has no row positions.
    """
    ids = batch.ids()
    return None if ids is None else ids.take(pa.array(np.where(after < 0, before, after)))


class IdentifiedRecords:
    """The records of another format, each with its id in the header `tailerd.id`."""

    def __init__(self, data: RecordFormat) -> None:
        self._data = data

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return this format with the other one prepared."""
        return type(self)(self._data.prepare(rows, registry))

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of all rows; see `RecordFormat`."""
        records = self._data.records(batch, now_us=now_us)
        header = Header(name=ID_HEADER, value=record_ids(batch, records))
        return replace(records, headers=(*records.headers, header))
