"""Protobuf row by row: what the official library writes and reads, from Python values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka.schema_registry.confluent.types import decimal_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.type import date_pb2, datetime_pb2, timeofday_pb2

from tailerd.records.schemas.protobuf_schema import Message, MessageField, ProtobufFile
from tests.records.protobuf_descriptor import file_descriptor
from tests.records.tables import shortest_bytes, to_micros, unscaled

FOREIGN = (timestamp_pb2, date_pb2, datetime_pb2, timeofday_pb2, decimal_pb2)


def message_class(file: ProtobufFile) -> Any:
    """Return the official library's class for the first message of a file."""
    pool = descriptor_pool.DescriptorPool()
    names = set[str]()
    for module in FOREIGN:
        add_with_imports(pool, module.DESCRIPTOR, names)
    pool.AddSerializedFile(file_descriptor(file, "table.proto"))
    found = pool.FindMessageTypeByName(file.messages[0].full_name)
    return message_factory.GetMessageClass(found)


def add_with_imports(pool: Any, descriptor: Any, names: set[str]) -> None:
    if descriptor.name in names:
        return
    names.add(descriptor.name)
    for imported in descriptor.dependencies:
        add_with_imports(pool, imported, names)
    own = descriptor_pb2.FileDescriptorProto()
    descriptor.CopyToProto(own)
    pool.Add(own)


def fill(target: Any, message: Message, values: list[Any], kinds: list[pa.DataType]) -> None:
    """Set the fields of a message to the values of a struct's columns, by their indexes."""
    for member in message.fields:
        value = values[member.index]
        if value is not None:
            _set(target, member, value, kinds[member.index])


def _set(target: Any, member: MessageField, value: Any, kind: pa.DataType) -> None:
    if member.label == "optional":
        _one(target, member, value, kind)
    elif member.label == "map":
        for key, item in value:
            _map_value(getattr(target, member.name), member, key, item, kind.item_type)
    elif pa.types.is_map(kind):
        assert member.value.message is not None
        for key, item in value:
            entry = getattr(target, member.name).add()
            types = [kind.key_type, kind.item_type]
            entry.SetInParent()
            fill(entry, member.value.message, [key, item], types)
    else:
        _items(getattr(target, member.name), member, value, kind.value_type)


def _items(target: Any, member: MessageField, items: list[Any], kind: pa.DataType) -> None:
    for item in items:
        if member.value.is_scalar:
            target.append(item)
        else:
            _content(target.add(), member.value.message, item, kind)


def _map_value(target: Any, member: MessageField, key: Any, item: Any, kind: pa.DataType) -> None:
    if member.value.is_scalar:
        target[key] = item
    else:
        _content(target[key], member.value.message, item, kind)


def _one(target: Any, member: MessageField, value: Any, kind: pa.DataType) -> None:
    if member.value.is_scalar:
        setattr(target, member.name, value)
    else:
        inner = getattr(target, member.name)
        inner.SetInParent()
        _content(inner, member.value.message, value, kind)


def _content(target: Any, message: Message | None, value: Any, kind: pa.DataType) -> None:
    if message is None:
        _well_known(target, value, kind)
    elif message.content == "struct":
        fill(target, message, [value[f.name] for f in kind], [f.type for f in kind])
    elif message.content == "collection":
        _set(target, message.fields[0], value, kind)
    elif value is not None:
        _one(target, message.fields[0], value, kind)


def _well_known(target: Any, value: Any, kind: pa.DataType) -> None:
    match value:
        case Decimal():
            target.value = shortest_bytes(unscaled(value))
            target.precision, target.scale = kind.precision, kind.scale
        case int() if pa.types.is_date(kind):
            _date(target, value)
        case int() if pa.types.is_time(kind):
            _clock(target, value)
        case int():
            micros = to_micros(value, kind)
            if kind.tz is not None:
                target.FromMicroseconds(micros)
            else:
                days, rest = divmod(micros, 86_400_000_000)
                _date(target, days)
                _clock(target, rest)


def _date(target: Any, days: int) -> None:
    text = str(np.datetime64(days, "D"))
    target.year, target.month, target.day = (int(part) for part in text.rsplit("-", 2))


def _clock(target: Any, micros: int) -> None:
    seconds, rest = divmod(micros, 1_000_000)
    target.hours, target.minutes, target.seconds = (
        seconds // 3600,
        seconds // 60 % 60,
        seconds % 60,
    )
    target.nanos = rest * 1000
