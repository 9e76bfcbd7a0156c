"""Protobuf messages as the text of a `.proto` file, and the numbers that such a text gives.

Protocol: Protocol Buffers Language Specification (Proto3)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tailerd.records.schemas.protobuf_schema import (
    Message,
    MessageField,
    Numbers,
    ProtobufFile,
    ValueType,
    comment_lines,
)

_PACKAGE = re.compile(r"\s*package\s+([\w.]+)\s*;")
_MESSAGE = re.compile(r"\s*message\s+(\w+)\s*\{")
_RESERVED = re.compile(r"\s*reserved\s+([\d\s,]+);")
_FIELD = re.compile(r"\s*(?:map\s*<[^>]*>|(?:(?:optional|repeated)\s+)?[\w.]+)\s+(\w+)\s*=\s*(\d+)")
_FOREIGN_PARTS = {"google", "confluent"}


def protobuf_text(file: ProtobufFile) -> str:
    """Return the text of a schema; the same messages give the same text."""
    lines = ['syntax = "proto3";']
    if file.package:
        lines += ["", f"package {file.package};"]
    if file.imports:
        lines += ["", *(f'import "{name}";' for name in file.imports)]
    # A part of the package may be called like a package of others: then those need a dot in front.
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
        yield f"{inner}{_declared(member, dot)} {member.name} = {member.number};"
    for nested in nested_messages(message):
        yield from _message(nested, inner, dot)
    yield f"{indent}}}"


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _declared(member: MessageField, dot: str) -> str:
    value = _written(member.value, dot)
    if member.label == "map" and member.key is not None:
        return f"map<{_written(member.key, dot)}, {value}>"
    if member.label == "optional" and not member.value.is_scalar:
        # A message is there or not without saying so.
        return value
    return f"{member.label} {value}"


def _written(value: ValueType, dot: str) -> str:
    if value.message is not None:
        return value.message.name
    return f"{dot}{value.name}" if value.imported else value.name


def nested_messages(message: Message) -> Iterator[Message]:
    """Yield the messages that are defined inside a message."""
    for member in message.fields:
        if member.value.message is not None and not member.value.is_shared:
            yield member.value.message


def earlier_numbers(text: str) -> Mapping[str, Numbers]:
    """Return the numbers of each message of a text that `protobuf_text` wrote, by its full name.

    A registry may have written it again, with other spaces or orders.
    """
    found: dict[str, Numbers] = {}
    package, stack = "", list[str]()
    names: dict[str, dict[str, int]] = {}
    reserved: dict[str, set[int]] = {}
    for statement in _statements(text):
        if match := _PACKAGE.match(statement):
            package = match[1]
        elif match := _MESSAGE.match(statement):
            stack.append(match[1])
            names[_full(package, stack)], reserved[_full(package, stack)] = {}, set()
        elif statement.strip() == "}":
            if stack:
                stack.pop()
        elif stack and (match := _RESERVED.match(statement)):
            reserved[_full(package, stack)] |= {int(part) for part in match[1].split(",")}
        elif stack and (match := _FIELD.match(statement)):
            names[_full(package, stack)][match[1]] = int(match[2])
    for name, numbers in names.items():
        found[name] = Numbers(numbers, frozenset(reserved[name]))
    return found


def _full(package: str, stack: list[str]) -> str:
    return ".".join([package, *stack] if package else stack)


def _statements(text: str) -> Iterator[str]:
    """Yield what ends with `;`, `{` or `}`, without comments."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    yield from re.findall(r"[^;{}]*[;{}]", plain)
