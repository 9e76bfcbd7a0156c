"""Value formats with schemas in a registry: `prepare` does I/O, encoding is pure."""

from __future__ import annotations

from typing import ClassVar, Self

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import BugError
from tailerd.records.base import FormatOptions, Records, RecordSchema, SchemaRegistry
from tailerd.records.formats.avro import avro_envelopes, avro_rows
from tailerd.records.formats.json_schema import JsonSchemaRecords
from tailerd.records.formats.protobuf import ProtobufCodec, protobuf_envelopes, protobuf_rows
from tailerd.records.formats.registered_records import RegisteredRecords, SchemaIds


class RegisteredFormat:
    """A `RecordFormat` in Confluent's wire format: the schema id, then the value."""

    def __init__(
        self,
        options: FormatOptions,
        earlier: tuple[str, ...] = (),
        ids: SchemaIds | None = None,
    ) -> None:
        """Create the format.

        Args:
            options: The format's options.
            earlier: The texts of earlier schemas, if its own depend on them.
            ids: The ids of its schemas; None before it is prepared.
        """
        self._options, self._earlier_texts, self._ids = options, earlier, ids
        self._form = self._make_records(options, earlier)

    def __reduce__(self) -> tuple[object, ...]:
        # The encoder is recreated in the other process.
        return type(self), (self._options, self._earlier_texts, self._ids)

    def _make_records(self, options: FormatOptions, earlier: tuple[str, ...]) -> RegisteredRecords:
        """Return the encoder.

        Args:
            options: The format's options.
            earlier: The texts of earlier schemas.
        """
        raise NotImplementedError

    def _earlier(self, rows: pa.Schema, registry: SchemaRegistry) -> tuple[str, ...]:
        """Return the texts of earlier schemas that the new schemas depend on."""
        return ()

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return the format with the ids of its schemas; see `RecordFormat`."""
        earlier = self._earlier(rows, registry)
        value, *key = registry.ids(record_schemas(self._make_records(self._options, earlier), rows))
        ids = SchemaIds(key=key[0] if key else None, value=value)
        return type(self)(self._options, earlier, ids)

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of all rows; see `RecordFormat`."""
        if self._ids is None:
            raise BugError("Records were made before their format was prepared.")
        return self._form.records(batch, ids=self._ids, now_us=now_us)


class AvroRecords(RegisteredFormat):
    """Avro: rows, or Debezium's envelope as written through AvroConverter."""

    content_type: ClassVar[str] = "application/avro"

    def _make_records(self, options: FormatOptions, earlier: tuple[str, ...]) -> RegisteredRecords:
        return avro_rows(options) if options.envelope == "none" else avro_envelopes(options)


class ProtobufRecords(RegisteredFormat):
    """Protobuf: rows, or Debezium's envelope; fields keep their numbers of earlier schemas."""

    content_type: ClassVar[str] = "application/protobuf"

    def _make_records(self, options: FormatOptions, earlier: tuple[str, ...]) -> RegisteredRecords:
        codec = ProtobufCodec(collections=options.collections, earlier=earlier)
        make = protobuf_rows if options.envelope == "none" else protobuf_envelopes
        return make(options, codec)

    def _earlier(self, rows: pa.Schema, registry: SchemaRegistry) -> tuple[str, ...]:
        schemas = record_schemas(self._form, rows)
        texts = (registry.earlier(each.part, each.name) for each in schemas)
        return tuple(text for text in texts if text)


class RegisteredJsonRecords(RegisteredFormat):
    """JSON as in `json` and `debezium`, with its schema in the registry."""

    # The schema id before it means that a value is not valid JSON.
    content_type: ClassVar[str] = "application/octet-stream"

    def _make_records(self, options: FormatOptions, earlier: tuple[str, ...]) -> RegisteredRecords:
        return JsonSchemaRecords(options, "row" if options.envelope == "none" else "envelope")


def record_schemas(form: RegisteredRecords, rows: pa.Schema) -> list[RecordSchema]:
    """Return the value's schema, and the key's if records have keys.

    Raises:
        ConfigError: A key column is not among the columns.
        UnsupportedFeatureError: A column has no type in the schema.
    """
    schemas = form.schemas(rows)
    value, key = schemas.value, schemas.key
    found = [RecordSchema(part="value", kind=value.kind, name=value.name, text=value.text)]
    if key is not None:
        found.append(RecordSchema(part="key", kind=key.kind, name=key.name, text=key.text))
    return found
