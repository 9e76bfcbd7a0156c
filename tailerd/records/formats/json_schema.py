"""JSON values and keys with registered schemas, in Confluent's wire format."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import BugError
from tailerd.records.base import FormatOptions, Records
from tailerd.records.binary.byte_pieces import prepend_header
from tailerd.records.formats.debezium import DebeziumRecords
from tailerd.records.formats.json import JsonRecords
from tailerd.records.formats.registered_records import SchemaIds, schema_header
from tailerd.records.schemas.json_schema import json_schema
from tailerd.records.schemas.record_shape import (
    RecordSchemas,
    RecordShape,
    WrittenSchema,
    envelope_shape,
    key_shape,
    row_shape,
)
from tailerd.records.update_pairs import key_columns


class JsonSchemaRecords:
    """The records of `JsonRecords` or `DebeziumRecords`, each prefixed with its schema id.

    Args:
        options: `schemas` is ignored, because the schema is in the registry.
        value: Rows with their change columns, or Debezium's envelope.
    """

    def __init__(self, options: FormatOptions, value: Literal["row", "envelope"]) -> None:
        self._options = replace(options, schemas=False)
        self._is_envelope = value == "envelope"
        make = DebeziumRecords if self._is_envelope else JsonRecords
        self._format = make(self._options)

    def schemas(self, rows: pa.Schema) -> RecordSchemas:
        """Return the schemas of keys and values; see `RegisteredRecords`."""
        options = self._options
        shape = (envelope_shape if self._is_envelope else row_shape)(options, rows)
        key = None
        if options.key:
            no_rows = pa.RecordBatch.from_pylist([], schema=rows)
            key = self._schema(key_shape(options, key_columns(no_rows, options.key)[1]))
        return RecordSchemas(key=key, value=self._schema(shape))

    def _schema(self, shape: RecordShape) -> WrittenSchema:
        return json_schema(shape, decimals=self._options.decimals)

    def records(self, batch: ChangeBatch, *, ids: SchemaIds, now_us: int | None = None) -> Records:
        """Return the records; tombstones keep their null value."""
        records = self._format.records(batch, now_us=now_us)
        keys = records.keys
        if keys is not None:
            if ids.key is None:
                raise BugError("Records have keys, and the id of their schema was not given.")
            keys = prepend_header(keys, schema_header(ids.key))
        values = prepend_header(records.values, schema_header(ids.value))
        return replace(records, keys=keys, values=values)
