"""Decode values with registered schemas, and events, to the JSON that `verify` compares."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import fastavro
import msgspec

from tailerd.errors import SinkError
from tailerd.records import protobuf_values
from tailerd.records.avro_values import json_value, plain_schema
from tailerd.records.decoded_values import Value
from tailerd.records.schemas.protobuf_parser import parsed_messages
from tailerd.sinks.kafka.config import KafkaSinkConfig

_HEADER_BYTES = 5
_MAGIC = 0
_FIRST_MESSAGE = b"\0"
"""The message index of a schema's first message."""


class KnowsSchemas(Protocol):
    """Returns the texts of schemas by id. Blocking."""

    def text_of(self, schema_id: int) -> str:
        """Return the text of a schema; `SinkError` if it is missing or the registry is down."""
        ...


class ValueReader:
    """Decodes the values of a sink to JSON."""

    def __init__(self, config: KafkaSinkConfig, schemas: KnowsSchemas | None) -> None:
        """Initialize; sends no request yet.

        Args:
            config: The sink's section.
            schemas: Returns the schemas of values; None if no registry is configured.
        """
        self._schemas = schemas
        self._is_structured = config.is_structured
        self._form = config.data_format
        self._readers: dict[int, Callable[[bytes], bytes]] = {}

    def read(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Return the JSON text of each value.

        Raises:
            SinkError: A value has another format, or the registry does not answer.
        """
        return [self._text(value) for value in values]

    def _text(self, value: bytes) -> bytes:
        try:
            data = _event_data(value) if self._is_structured else value
            if self._form == "json_schema":
                return data[_HEADER_BYTES:]
            return self._registered(data) if self._form in _READERS else data
        except (ValueError, KeyError, TypeError, IndexError, EOFError) as error:
            raise SinkError(
                f"A record is not a value of the format {self._form}: {value[:80]!r} ({error!r})."
                " Something else writes to the same place.",
                remedy="Verify a place that only this pipeline writes to.",
            ) from error

    def _registered(self, value: bytes) -> bytes:
        if value[0] != _MAGIC or self._schemas is None:
            raise ValueError("it does not begin with the id of a schema")
        number = int.from_bytes(value[1:_HEADER_BYTES], "big")
        if number not in self._readers:
            self._readers[number] = _READERS[self._form](self._schemas.text_of(number))
        return self._readers[number](value[_HEADER_BYTES:])


def _event_data(value: bytes) -> bytes:
    event: dict[str, msgspec.Raw] = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    if (data := event.get("data")) is not None:
        return bytes(data)
    return b64decode(msgspec.json.decode(event["data_base64"], type=str))


def _avro_reader(text: str) -> Callable[[bytes], bytes]:
    node: Any = json.loads(text)
    schema = fastavro.parse_schema(plain_schema(node))
    value: Value = json_value(node)

    def read(raw: bytes) -> bytes:
        decoded = fastavro.schemaless_reader(io.BytesIO(raw), schema, None)
        return msgspec.json.encode(value(decoded))

    return read


def _protobuf_reader(text: str) -> Callable[[bytes], bytes]:
    # Imported here: it takes a quarter of a second.
    from google.protobuf.message import DecodeError

    from tailerd.sinks.kafka.schema_registry.protobuf_messages import message_decoder

    package, messages = parsed_messages(text)
    decode = message_decoder(package, messages)
    value = protobuf_values.json_value(next(iter(messages)), messages)

    def read(raw: bytes) -> bytes:
        if raw[:1] != _FIRST_MESSAGE:
            raise ValueError("it is not the first message of its schema")
        try:
            return msgspec.json.encode(value(decode(raw[1:])))
        except DecodeError as error:
            raise ValueError("it is not a message of its schema") from error

    return read


_READERS: Mapping[str, Callable[[str], Callable[[bytes], bytes]]] = {
    "avro": _avro_reader,
    "protobuf": _protobuf_reader,
}
