"""Ids of records, the same in every run: a reader that has seen one need not take it again.

A repeated delivery gives the same records in the same order, and may cut them elsewhere. Whoever
keeps the ids it has handled, or the last one of each partition, can leave out what comes twice.
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
    """Return `string`: the id of each record.

    It is that of its row, of an update that of the newer image; a tombstone's says so, since the
    delete before it is of the same row.

    Raises:
        BugError: The batch does not say where its rows stand.
    """
    ids = batch.ids()
    if ids is None:
        raise BugError(
            "These rows have no ids, because their reader does not provide row positions.",
            remedy="Set `event_ids: false`, and report it to the maintainers of the table format.",
        )
    found = records.of_rows(ids)
    if not records.values.null_count:
        return found
    tombstones = pc.binary_join_element_wise(found, _TOMBSTONE, "")
    return pc.if_else(records.values.is_valid(), found, tombstones)


def newest_ids(
    batch: ChangeBatch, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]
) -> pa.Array | None:
    """Return the ids of changes by the rows of their images, below 0 where there is none.

    None: the batch does not say where its rows stand.
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
