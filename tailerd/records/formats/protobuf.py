"""Protobuf values and keys in Confluent's wire format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tailerd.records.base import FormatOptions
from tailerd.records.formats.protobuf_encoder import ProtobufEncoder
from tailerd.records.formats.registered_records import (
    EnvelopeRecords,
    RowRecords,
    schema_header,
)
from tailerd.records.schemas.protobuf_parser import earlier_numbers
from tailerd.records.schemas.protobuf_schema import (
    Collections,
    Numbers,
    ProtobufFile,
    protobuf_file,
)
from tailerd.records.schemas.protobuf_text import protobuf_text
from tailerd.records.schemas.record_shape import RecordShape, WrittenSchema

_FIRST_MESSAGE = b"\0"
"""The index of the message in its file: one zero byte for the first."""


class ProtobufCodec:
    """Protobuf as a `Codec`.

    Args:
        collections: How lists and maps are written.
        earlier: Texts of the previous schemas of key and value, whose field numbers are kept.
    """

    def __init__(
        self, *, collections: Collections = "repeated", earlier: tuple[str, ...] = ()
    ) -> None:
        self._collections: Collections = collections
        numbers: dict[str, Numbers] = {}
        for text in earlier:
            numbers |= earlier_numbers(text)
        self._earlier: Mapping[str, Numbers] = MappingProxyType(numbers)

    def file(self, shape: RecordShape) -> ProtobufFile:
        """Return the messages of a shape; see `protobuf_file`."""
        return protobuf_file(shape, collections=self._collections, earlier=self._earlier)

    def schema(self, shape: RecordShape) -> WrittenSchema:
        """Return the schema of a shape as the text of a `.proto` file."""
        file = self.file(shape)
        return WrittenSchema(
            kind="PROTOBUF",
            name=file.messages[0].full_name,
            text=protobuf_text(file),
            adjusted=file.adjusted,
        )

    def encoder(self, shape: RecordShape) -> ProtobufEncoder:
        """Return the encoder of messages with that schema."""
        return ProtobufEncoder(self.file(shape).messages[0])

    def header(self, schema_id: int) -> bytes:
        """Return the magic byte, the schema's id and the message's index."""
        return schema_header(schema_id) + _FIRST_MESSAGE


def protobuf_rows(options: FormatOptions, codec: ProtobufCodec | None = None) -> RowRecords:
    """Return the format of rows with their change columns."""
    return RowRecords(options, codec or ProtobufCodec())


def protobuf_envelopes(
    options: FormatOptions, codec: ProtobufCodec | None = None
) -> EnvelopeRecords:
    """Return the format of Debezium's envelope."""
    return EnvelopeRecords(options, codec or ProtobufCodec())
