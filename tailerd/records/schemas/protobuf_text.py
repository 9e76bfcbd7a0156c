"""Write Protobuf messages as the text of a `.proto` file.

Protocol: Protocol Buffers Language Specification (Proto3)
"""

from __future__ import annotations

from collections.abc import Iterator

from tailerd.records.schemas.protobuf_schema import (
    Message,
    MessageField,
    ProtobufFile,
    ValueType,
    comment_lines,
)

SCALARS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
}
"""Scalar type -> its number in descriptors."""
_FOREIGN_PARTS = {"google", "confluent"}


def protobuf_text(file: ProtobufFile) -> str:
    """Return the text of a schema; the same messages produce the same text."""
    lines = ['syntax = "proto3";']
    if file.package:
        lines += ["", f"package {file.package};"]
    if file.imports:
        lines += ["", *(f'import "{name}";' for name in file.imports)]
    # If a part of the package has the name of an imported package, imported types need a leading
    # dot.
    dot = "." if _FOREIGN_PARTS & set(file.package.split(".")) else ""
    for message in file.messages:
        lines += ["", *_message(message, "", dot)]
    return "\n".join(lines) + "\n"


def _message(message: Message, indent: str, dot: str) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    inner = f"{indent}  "
    if message.reserved:
        yield f"{inner}reserved {', '.join(map(str, message.reserved))};"
    for member in message.fields:
        for line in comment_lines(member):
            yield f"{inner}// {_one_line(line)}"
        yield f"{inner}{_declare_field(member, dot)} {member.name} = {member.number};"
    for nested in nested_messages(message):
        yield from _message(nested, inner, dot)
    yield f"{indent}}}"


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _declare_field(member: MessageField, dot: str) -> str:
    value = _write_value(member.value, dot)
    if member.label == "map" and member.key is not None:
        return f"map<{_write_value(member.key, dot)}, {value}>"
    if member.label == "optional" and not member.value.is_scalar:
        # Message fields have presence without a label.
        return value
    return f"{member.label} {value}"


def _write_value(value: ValueType, dot: str) -> str:
    if value.message is not None:
        return value.message.name
    return f"{dot}{value.name}" if value.imported else value.name


def nested_messages(message: Message) -> Iterator[Message]:
    """Yield the messages that are defined inside a message."""
    for member in message.fields:
        if member.value.message is not None and not member.value.is_shared:
            yield member.value.message
