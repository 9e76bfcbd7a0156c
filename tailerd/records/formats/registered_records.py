"""Encode records with registered schemas: their bytes start with the schema's id.

Pure: the caller registers the schemas of `schemas`, and passes their ids to `records`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa

from tailerd import __version__
from tailerd.changefeed.change_batch import ChangeBatch, value_rows
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.errors import BugError
from tailerd.records.base import FormatOptions, Records
from tailerd.records.binary.byte_pieces import nulls_where
from tailerd.records.binary.row_columns import (
    Column,
    ConstantColumn,
    EncodedRows,
    RecordEncoder,
    encode_rows,
)
from tailerd.records.byte_rows import ByteColumn, byte_column
from tailerd.records.event_ids import newest_ids
from tailerd.records.formats.debezium import split_updates, with_null_after
from tailerd.records.json_text import timestamp_text
from tailerd.records.record_keys import stable_columns
from tailerd.records.schemas.record_shape import (
    RecordSchemas,
    RecordShape,
    WrittenSchema,
    envelope_shape,
    image_shape,
    key_shape,
    row_shape,
    source_shape,
)
from tailerd.records.update_pairs import (
    NO_ROW,
    RowChanges,
    Rows,
    key_columns,
    known_columns,
    pair_rows,
    replay_order,
)

MAGIC = b"\0"
"""First byte of Confluent's wire format; the id follows as four big-endian bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaIds:
    """The registry's ids of the schemas for one table schema.

    Attributes:
        key: Id of the key's schema; None for records without keys.
        value: Id of the value's schema.
    """

    key: int | None
    value: int


class Codec(Protocol):
    """A binary format: schemas and encoders for any shape of records."""

    def schema(self, shape: RecordShape) -> WrittenSchema:
        """Return the schema of a shape.

        Raises:
            UnsupportedFeatureError: A column has no type in this format.
        """
        ...

    def encoder(self, shape: RecordShape) -> RecordEncoder:
        """Return the encoder of records with that schema."""
        ...

    def header(self, schema_id: int) -> bytes:
        """Return the prefix of each record."""
        ...


class RegisteredRecords(Protocol):
    """Like `RecordFormat`, for values and keys with registered schemas."""

    def schemas(self, rows: pa.Schema) -> RecordSchemas:
        """Return the schemas of the records of such rows.

        Raises:
            ConfigError: A key column is not among the table's columns.
            UnsupportedFeatureError: A column has no type in this format.
        """
        ...

    def records(self, batch: ChangeBatch, *, ids: SchemaIds, now_us: int | None = None) -> Records:
        """Return the records of all rows, in the order that `RecordFormat` guarantees.

        Args:
            batch: Rows of one commit.
            ids: Ids of the schemas that `schemas` returns for this batch's schema.
            now_us: Processing time, microseconds since the epoch; None uses the commit's timestamp.

        Raises:
            TableError: The format cannot represent a value.
        """
        ...


def schema_header(schema_id: int) -> bytes:
    """Return the magic byte and the id of a schema."""
    return MAGIC + schema_id.to_bytes(4, "big")


class RowRecords:
    """One record per row, with its change columns; each image of an update has its own key.

    The order is that of `JsonRecords`.
    """

    def __init__(self, options: FormatOptions, codec: Codec) -> None:
        self._options = options
        self._codec = codec
        self._keys = _Keys(options, codec)
        self._encoder = per_schema(lambda rows: codec.encoder(row_shape(options, rows)))

    def schemas(self, rows: pa.Schema) -> RecordSchemas:
        """Return the schemas of keys and values; see `RegisteredRecords`."""
        value = self._codec.schema(row_shape(self._options, rows))
        return RecordSchemas(key=self._keys.schema(rows), value=value)

    def records(self, batch: ChangeBatch, *, ids: SchemaIds, now_us: int | None = None) -> Records:
        """Return the rows, which do not include the processing time."""
        columns = [*value_rows(batch.rows).columns, *_change_columns(batch)]
        header = self._codec.header(ids.value)
        values = encode_rows(self._encoder(batch.rows.schema), header, columns, batch.num_rows)
        keys = self._keys.from_rows(batch, ids)
        records = Records(keys=keys, values=values)
        if keys is None:
            return records
        key = self._options.key
        order = replay_order(batch, (*key, *known_columns(batch, self._options.routed_by)))
        return records if order is None else records.take(order)


class EnvelopeRecords:
    """One record per change in Debezium's envelope, and a tombstone after each delete.

    Pairing, order and keys are those of `DebeziumRecords`.
    """

    def __init__(self, options: FormatOptions, codec: Codec) -> None:
        self._options = options
        self._codec = codec
        self._keys = _Keys(options, codec)
        self._image = per_schema(lambda rows: codec.encoder(image_shape(options, rows)))
        self._envelope = per_schema(lambda rows: codec.encoder(envelope_shape(options, rows)))
        self._source = codec.encoder(source_shape(options))

    def schemas(self, rows: pa.Schema) -> RecordSchemas:
        """Return the schemas of keys and envelopes; see `RegisteredRecords`."""
        value = self._codec.schema(envelope_shape(self._options, rows))
        return RecordSchemas(key=self._keys.schema(rows), value=value)

    def records(self, batch: ChangeBatch, *, ids: SchemaIds, now_us: int | None = None) -> Records:
        """Return the records of a batch's changes."""
        options = self._options
        changes = split_updates(pair_rows(batch, options.key), batch, options.routed_by)
        values = self._values(batch, changes, ids, now_us)
        is_removal = changes.after == NO_ROW
        rows = np.where(is_removal, changes.before, changes.after)
        keys = self._keys.from_rows(batch, ids)
        if keys is None:
            return Records(keys=None, values=values, rows=rows)
        if options.tombstones and is_removal.any():
            rows = np.repeat(rows, 1 + is_removal)
            values = with_null_after(values, is_removal)
        return Records(keys=keys.take(pa.array(rows)), values=values, rows=rows)

    def _values(
        self, batch: ChangeBatch, changes: RowChanges, ids: SchemaIds, now_us: int | None
    ) -> pa.Array:
        schema = batch.rows.schema
        images = byte_column(
            encode_rows(self._image(schema), b"", value_rows(batch.rows).columns, batch.num_rows)
        )
        now = batch.timestamp_us if now_us is None else now_us
        columns: list[Column] = [
            _select_image(images, changes.before),
            _select_image(images, changes.after),
            self._encode_source(batch, changes),
            _operations(batch, changes),
            *(ConstantColumn(time) for time in _times(now)),
        ]
        header = self._codec.header(ids.value)
        return encode_rows(self._envelope(schema), header, columns, len(changes.before))

    def _encode_source(self, batch: ChangeBatch, changes: RowChanges) -> EncodedRows:
        options = self._options
        is_snapshot = batch.change_source is ChangeSourceKind.SNAPSHOT
        values: list[str | int] = [
            *(__version__, "tailerd", options.name),
            *_times(batch.timestamp_us),
            *("true" if is_snapshot else "false", options.db, options.schema, options.table),
            *([options.table_id] if options.table_id else []),
            *(batch.version, timestamp_text(batch.timestamp_us), batch.change_source.value),
        ]
        count = len(changes.before)
        ids = newest_ids(batch, changes.before, changes.after)
        sequence = pa.nulls(count, pa.string()) if ids is None else ids
        columns: list[Column] = [*(ConstantColumn(value) for value in values), sequence]
        return EncodedRows(byte_column(encode_rows(self._source, b"", columns, count)))


class _Keys:
    """Encodes the keys of rows in the format of their values."""

    def __init__(self, options: FormatOptions, codec: Codec) -> None:
        self._options = options
        self._codec = codec
        self._encoder = per_schema(lambda rows: codec.encoder(self._shape(rows)))

    def _shape(self, rows: pa.Schema) -> RecordShape:
        no_rows = pa.RecordBatch.from_pylist([], schema=rows)
        return key_shape(self._options, key_columns(no_rows, self._options.key)[1])

    def schema(self, rows: pa.Schema) -> WrittenSchema | None:
        return self._codec.schema(self._shape(rows)) if self._options.key else None

    def from_rows(self, batch: ChangeBatch, ids: SchemaIds) -> pa.Array | None:
        """Return the key of each row; equal keys have equal bytes."""
        if not self._options.key:
            return None
        if ids.key is None:
            raise BugError("Records have keys, and the id of their schema was not given.")
        columns = stable_columns(*key_columns(batch.rows, self._options.key))
        header = self._codec.header(ids.key)
        return encode_rows(self._encoder(batch.rows.schema), header, columns, batch.num_rows)


def per_schema(make: Callable[[pa.Schema], RecordEncoder]) -> Callable[[pa.Schema], RecordEncoder]:
    """Return a function that returns the encoder of a schema, cached for the latest schemas.

    The cache compares field metadata too, which marks variants; Arrow's own comparison ignores it.
    """

    @lru_cache(maxsize=8)
    def from_text(text: bytes) -> RecordEncoder:
        return make(pa.ipc.read_schema(pa.py_buffer(text)))

    return lambda schema: from_text(schema.serialize().to_pybytes())


def _change_columns(batch: ChangeBatch) -> list[Column]:
    change = batch.change_type
    return [
        ConstantColumn(change.value) if isinstance(change, ChangeType) else change,
        ConstantColumn(batch.version),
        ConstantColumn(batch.timestamp_us),
    ]


def _select_image(images: ByteColumn, rows: Rows) -> EncodedRows:
    is_missing = rows == NO_ROW
    if is_missing.all():
        return EncodedRows(None)
    if not is_missing.any():
        return EncodedRows(images.take(rows))
    return EncodedRows(nulls_where(images.take(np.maximum(rows, 0)), is_missing))


_OPERATIONS = ["c", "u", "d"]
_CREATE, _UPDATE, _DELETE = range(3)


def _operations(batch: ChangeBatch, changes: RowChanges) -> Column:
    """Return `op` of each change."""
    if batch.change_source is ChangeSourceKind.SNAPSHOT:
        return ConstantColumn("r")
    has_before, has_after = changes.before != NO_ROW, changes.after != NO_ROW
    alone = np.where(has_before, _DELETE, _CREATE)
    numbers = np.where(has_before & has_after, _UPDATE, alone)
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int8)), pa.array(_OPERATIONS))


def _times(micros: int) -> tuple[int, int, int]:
    return micros // 1000, micros, micros * 1000
