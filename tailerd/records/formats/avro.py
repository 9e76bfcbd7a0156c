"""Avro values and keys in Confluent's wire format."""

from __future__ import annotations

from tailerd.records.base import FormatOptions
from tailerd.records.formats.avro_encoder import AvroEncoder
from tailerd.records.formats.registered_records import (
    EnvelopeRecords,
    RowRecords,
    schema_header,
)
from tailerd.records.schemas.avro_schema import avro_schema
from tailerd.records.schemas.record_shape import RecordShape, WrittenSchema


class AvroCodec:
    """Avro as a `Codec`.

    Args:
        connect_names: Whether schemas have the `connect.*` properties of Confluent's AvroConverter.
    """

    def __init__(self, *, connect_names: bool = False) -> None:
        self._connect_names = connect_names

    def schema(self, shape: RecordShape) -> WrittenSchema:
        """Return the schema of a shape; see `avro_schema`."""
        return avro_schema(shape, connect_names=self._connect_names)

    def encoder(self, shape: RecordShape) -> AvroEncoder:
        """Return the encoder of records with that schema."""
        return AvroEncoder(shape)

    def header(self, schema_id: int) -> bytes:
        """Return the magic byte and the schema's id."""
        return schema_header(schema_id)


def avro_rows(options: FormatOptions) -> RowRecords:
    """Return the format of rows with their change columns."""
    return RowRecords(options, AvroCodec())


def avro_envelopes(options: FormatOptions) -> EnvelopeRecords:
    """Return the format of Debezium's envelope, as its connectors write it with AvroConverter."""
    return EnvelopeRecords(options, AvroCodec(connect_names=True))
