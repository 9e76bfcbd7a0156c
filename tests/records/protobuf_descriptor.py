"""Protobuf messages as a serialized `FileDescriptorProto`, as protoc makes it of their text.

Protocol: google/protobuf/descriptor.proto
"""

from __future__ import annotations

from collections.abc import Iterator

from tailerd.records.binary.varints import varint_bytes
from tailerd.records.schemas.protobuf_schema import (
    Message,
    MessageField,
    ProtobufFile,
    ValueType,
    entry_name,
)
from tailerd.records.schemas.protobuf_text import SCALARS, nested_messages

_MESSAGE_TYPE = 11
_OPTIONAL, _REPEATED = 1, 3
_MAP_ENTRY = b"\x38\x01"


def file_descriptor(file: ProtobufFile, name: str) -> bytes:
    """Return the descriptor of a schema.

    Args:
        file: Its messages.
        name: Of the file, such as `orders.proto`.
    """
    return b"".join(
        [
            _text(1, name),
            *([_text(2, file.package)] if file.package else []),
            *(_text(3, imported) for imported in file.imports),
            *(_bytes(4, _message(message)) for message in file.messages),
            _text(12, "proto3"),
        ]
    )


def _message(message: Message) -> bytes:
    oneofs = list(_oneofs(message))
    parts = [_text(1, message.name)]
    parts += [_bytes(2, _field(message, member, oneofs)) for member in message.fields]
    # In the order of the text's fields, maps' entries among the others.
    for member in message.fields:
        if member.label == "map":
            parts.append(_bytes(3, _map_entry(message, member)))
    parts += [_bytes(3, _message(nested)) for nested in nested_messages(message)]
    parts += [_bytes(8, _text(1, oneof)) for _, oneof in oneofs]
    parts += [_bytes(9, _number(1, number) + _number(2, number + 1)) for number in message.reserved]
    return b"".join(parts)


def _oneofs(message: Message) -> Iterator[tuple[str, str]]:
    """Yield field and oneof of each `optional` scalar: proto3 knows of presence that way."""
    taken = {member.name for member in message.fields}
    taken |= {nested.name for nested in nested_messages(message)}
    taken |= {entry_name(member.name) for member in message.fields if member.label == "map"}
    for member in message.fields:
        if member.label == "optional" and member.value.is_scalar:
            # Two underscores in front are names that C++ keeps for itself.
            name = member.name if member.name.startswith("_") else f"_{member.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            yield member.name, name


def _field(message: Message, member: MessageField, oneofs: list[tuple[str, str]]) -> bytes:
    label = _OPTIONAL if member.label == "optional" else _REPEATED
    parts = [_text(1, member.name), _number(3, member.number), _number(4, label)]
    if member.label == "map":
        entry = f".{message.full_name}.{entry_name(member.name)}"
        parts += [_number(5, _MESSAGE_TYPE), _text(6, entry)]
    else:
        parts.append(_type(member.value))
    for index, (name, _) in enumerate(oneofs):
        if name == member.name:
            parts += [_number(9, index), _text(10, _json_name(member.name)), _number(17, 1)]
            return b"".join(parts)
    return b"".join([*parts, _text(10, _json_name(member.name))])


def _map_entry(message: Message, member: MessageField) -> bytes:
    fields = b""
    for name, number, value in (("key", 1, member.key), ("value", 2, member.value)):
        if value is not None:
            head = _text(1, name) + _number(3, number) + _number(4, _OPTIONAL)
            fields += _bytes(2, head + _type(value) + _text(10, name))
    return _text(1, entry_name(member.name)) + fields + _bytes(7, _MAP_ENTRY)


def _type(value: ValueType) -> bytes:
    if value.is_scalar:
        return _number(5, SCALARS[value.name])
    return _number(5, _MESSAGE_TYPE) + _text(6, f".{value.name}")


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _number(field: int, number: int) -> bytes:
    return varint_bytes(field << 3) + varint_bytes(number)


def _bytes(field: int, raw: bytes) -> bytes:
    return varint_bytes(field << 3 | 2) + varint_bytes(len(raw)) + raw


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
