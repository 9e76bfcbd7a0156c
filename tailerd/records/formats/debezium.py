"""Records in Debezium's format: an envelope, and a tombstone after each delete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.records.base import Change, FormatOptions, Records, SchemaRegistry
from tailerd.records.connect_schema import envelope_schema, key_schema, with_json_variants
from tailerd.records.debezium import DebeziumEncoder
from tailerd.records.record_keys import record_keys, stable_fields
from tailerd.records.update_pairs import (
    NO_ROW,
    RowChanges,
    key_columns,
    key_texts,
    known_columns,
    pair_rows,
)


class DebeziumRecords:
    """One record per change, encoded by `DebeziumEncoder`, with the key of its row.

    An update that changes the key, or a column that chooses the topic or partition, is a delete
    of the old row, its tombstone, and a create.
    """

    content_type: ClassVar[str] = "application/json"

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        self._key = tuple(options.key)
        self._encoder = DebeziumEncoder(
            name=options.name,
            table=options.table,
            db=options.db,
            schema=options.schema,
            table_id=options.table_id,
            key=self._key,
            decimals=options.decimals,
        )

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return itself: schemas, if enabled, are part of the values."""
        return self

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the changes of a batch."""
        if self._options.schemas:
            batch = with_json_variants(batch)
        changes = split_updates(pair_rows(batch, self._key), batch, self._options.routed_by)
        opening, closing = self._around_value(batch)
        values = self._encoder.encode_changes(
            batch, changes, now_us=now_us, opening=opening, closing=closing
        )
        is_removal = changes.after == NO_ROW
        rows = np.where(is_removal, changes.before, changes.after)
        if not self._key:
            return Records(keys=None, values=values, rows=rows)
        if self._options.tombstones and is_removal.any():
            rows = np.repeat(rows, 1 + is_removal)
            values = with_null_after(values, is_removal)
        return Records(keys=self._keys(batch).take(pa.array(rows)), values=values, rows=rows)

    @staticmethod
    def changes_in(value: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the images of a value, with or without its schema around it."""
        envelope = value["payload"] if "payload" in value and "schema" in value else value
        version = envelope["source"]["commit_version"]
        if envelope["before"] is not None:
            yield -1, envelope["before"], version
        if envelope["after"] is not None:
            yield 1, envelope["after"], version

    def _keys(self, batch: ChangeBatch) -> pa.Array:
        opening, closing = "", ""
        if self._options.schemas:
            _, fields = key_columns(batch.rows, self._key)
            opening, closing = _around(key_schema(self._options, stable_fields(fields)))
        return record_keys(
            batch,
            self._key,
            quote_decimals=self._options.decimals == "string",
            opening=opening,
            closing=closing,
        )

    def _around_value(self, batch: ChangeBatch) -> tuple[str, str]:
        if not self._options.schemas:
            return "", ""
        return _around(envelope_schema(self._options, batch.rows.schema))


def split_updates(changes: RowChanges, batch: ChangeBatch, columns: Sequence[str]) -> RowChanges:
    """Return the changes, with updates split whose images differ in one of the columns."""
    known = known_columns(batch, columns)
    paired = changes.updates
    if not known or not len(paired):
        return changes
    texts = key_texts(batch.rows.select(known), known)
    codes = texts.dictionary_encode().indices.to_numpy()
    moves = paired[codes[changes.before[paired]] != codes[changes.after[paired]]]
    if not len(moves):
        return changes
    is_removal = changes.after == NO_ROW
    removed = np.sort(np.concatenate((changes.before[is_removal], changes.before[moves])))
    before = changes.before.copy()
    before[moves] = NO_ROW
    return RowChanges(
        np.concatenate((removed, before[~is_removal])),
        np.concatenate((np.full(len(removed), NO_ROW), changes.after[~is_removal])),
    )


def _around(schema: str) -> tuple[str, str]:
    return f'{{"schema":{schema},"payload":', "}"


def with_null_after(values: pa.Array, is_followed: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the values with a null after each marked one; bytes are not copied.

    Args:
        values: `binary` or `large_binary`, without nulls.
        is_followed: As long as the values.
    """
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return values
    starts = np.frombuffer(offsets, dtype=kind)[values.offset : values.offset + len(values) + 1]
    repeats = 1 + is_followed
    is_value = np.zeros(int(repeats.sum()), dtype=bool)
    is_value[np.cumsum(repeats) - repeats] = True
    ends = np.repeat(starts[1:], repeats)
    return pa.Array.from_buffers(
        values.type,
        len(is_value),
        [
            pa.array(is_value).buffers()[1],
            pa.py_buffer(np.concatenate((starts[:1], ends))),
            data,
        ],
    )
