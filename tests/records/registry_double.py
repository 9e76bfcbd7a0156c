"""Confluent's own registry in memory, to hand schemas over to Confluent's deserializers."""

from __future__ import annotations

from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext

from tailerd.records.formats.registered_records import SchemaIds
from tailerd.records.schemas.record_shape import RecordSchemas, WrittenSchema

VALUE = SerializationContext("orders", MessageField.VALUE)
KEY = SerializationContext("orders", MessageField.KEY)


def registered(schemas: RecordSchemas) -> tuple[Any, SchemaIds]:
    """Return a registry that has the schemas, and the ids it gave them."""
    client: Any = SchemaRegistryClient.new_client({"url": "mock://records"})
    key = None if schemas.key is None else _register(client, "orders-key", schemas.key)
    return client, SchemaIds(key=key, value=_register(client, "orders-value", schemas.value))


def _register(client: Any, subject: str, schema: WrittenSchema) -> int:
    return int(client.register_schema(subject, Schema(schema.text, schema.kind)))
