"""Build decoders of Protobuf messages with the official library, from their parsed schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka.schema_registry.confluent.types import decimal_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.type import date_pb2, datetime_pb2, timeofday_pb2

from tailerd.records.schemas.protobuf_parser import ParsedField, ParsedMessage
from tailerd.records.schemas.protobuf_schema import entry_name
from tailerd.records.schemas.protobuf_text import SCALARS

Descriptor = descriptor_pb2.DescriptorProto
FieldDescriptor = descriptor_pb2.FieldDescriptorProto

_FOREIGN = (timestamp_pb2, date_pb2, datetime_pb2, timeofday_pb2, decimal_pb2)
_FILE = "table.proto"


def message_decoder(package: str, messages: Mapping[str, ParsedMessage]) -> Callable[[bytes], Any]:
    """Return a decoder of the first message of a schema.

    Every field that is not repeated has presence.

    Args:
        package: Package of the messages.
        messages: Messages of the schema by full name, each before its nested messages.
    """
    # proto2, because its fields have presence; the encoding is the same.
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=package, syntax="proto2")
    pool, names = descriptor_pool.DescriptorPool(), set[str]()
    for module in _FOREIGN:
        _add(pool, module.DESCRIPTOR, names)
        file.dependency.append(module.DESCRIPTOR.name)
    made: dict[str, Descriptor] = {}
    for name, message in messages.items():
        outer, _, short = name.rpartition(".")
        inside = made[outer].nested_type if message.is_nested else file.message_type
        made[name] = inside.add(name=short)
        for field in message.fields:
            _describe(made[name], name, field)
    pool.Add(file)
    first = pool.FindMessageTypeByName(next(iter(messages)))
    return message_factory.GetMessageClass(first).FromString


def _describe(message: Descriptor, name: str, field: ParsedField) -> None:
    described = message.field.add(name=field.name, number=field.number)
    described.label = FieldDescriptor.LABEL_OPTIONAL
    if field.label != "optional":
        described.label = FieldDescriptor.LABEL_REPEATED
    if field.label != "map":
        _set_type(described, field.type)
        return
    entry = entry_name(field.name)
    described.type, described.type_name = FieldDescriptor.TYPE_MESSAGE, f".{name}.{entry}"
    made = message.nested_type.add(name=entry)
    made.options.map_entry = True
    for number, part, kind in ((1, "key", field.key), (2, "value", field.type)):
        inner = made.field.add(name=part, number=number, label=FieldDescriptor.LABEL_OPTIONAL)
        _set_type(inner, kind)


def _set_type(described: FieldDescriptor, kind: str) -> None:
    if kind in SCALARS:
        described.type = FieldDescriptor.Type.Value(f"TYPE_{kind.upper()}")
    else:
        described.type, described.type_name = FieldDescriptor.TYPE_MESSAGE, f".{kind}"


def _add(pool: descriptor_pool.DescriptorPool, descriptor: Any, names: set[str]) -> None:
    """Add a file to a pool, after the files that it imports."""
    if descriptor.name in names:
        return
    names.add(descriptor.name)
    for imported in descriptor.dependencies:
        _add(pool, imported, names)
    own = descriptor_pb2.FileDescriptorProto()
    descriptor.CopyToProto(own)
    pool.Add(own)
