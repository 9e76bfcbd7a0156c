"""Encode each row as one JSON object, as `tail --format jsonl` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import pyarrow as pa

from tailerd.changefeed.change_batch import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.changefeed.change_task import ChangeType
from tailerd.records.base import Change, FormatOptions, Records, SchemaRegistry
from tailerd.records.json import JsonEncoder
from tailerd.records.record_keys import record_keys
from tailerd.records.update_pairs import known_columns, replay_order

_SIGNS = {
    ChangeType.INSERT.value: 1,
    ChangeType.UPDATE_POSTIMAGE.value: 1,
    ChangeType.DELETE.value: -1,
    ChangeType.UPDATE_PREIMAGE.value: -1,
}


class JsonRecords:
    """One record per row: both images of an update are records, each with its own key.

    An old image whose new image goes to another topic or partition is ordered with the deletes.
    Without a key, records are in the order of the rows.
    """

    content_type: ClassVar[str] = "application/json"

    def __init__(self, options: FormatOptions) -> None:
        self._key = tuple(options.key)
        self._routed_by = tuple(options.routed_by)
        self._quote_decimals = options.decimals == "string"
        self._encoder = JsonEncoder(decimals=options.decimals)

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return itself: values have no schema."""
        return self

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the rows, which do not include the processing time."""
        values = self._encoder.encode(batch)
        if not self._key:
            return Records(keys=None, values=values)
        keys = record_keys(batch, self._key, quote_decimals=self._quote_decimals)
        records = Records(keys=keys, values=values)
        order = replay_order(batch, (*self._key, *known_columns(batch, self._routed_by)))
        return records if order is None else records.take(order)

    @staticmethod
    def changes_in(value: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the only row of a value."""
        row = {name: each for name, each in value.items() if name not in CHANGE_COLUMNS}
        yield _SIGNS[value[CHANGE_TYPE]], row, value[COMMIT_VERSION]
