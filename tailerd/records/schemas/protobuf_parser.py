"""Parse a `.proto` text of `protobuf_text`, which a registry may have reformatted.

Only the parts of the language that tailerd writes are supported: messages, fields, their comments
and reserved numbers.

Protocol: Protocol Buffers Language Specification (Proto3)
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailerd.records.schemas.adjusted_names import allowed_name
from tailerd.records.schemas.protobuf_schema import IS_VARIANT, Label, Numbers

_TOKEN = re.compile(
    r"""//(?P<line>[^\n]*) | /\*(?P<block>.*?)\*/ | (?P<part>"[^"]*"|[^;{}"/]+) | (?P<end>[;{}])""",
    re.DOTALL | re.VERBOSE,
)
_PACKAGE = re.compile(r"package\s+([\w.]+)")
_MESSAGE = re.compile(r"message\s+(\w+)")
_RESERVED = re.compile(r"reserved\s+(\d.*)", re.DOTALL)
_NUMBERS = re.compile(r"(\d+)(?:\s+to\s+(\d+))?")
_FIELD = re.compile(
    r"""(?: map\s*<\s*(?P<key>\w+)\s*,\s*(?P<item>[\w.]+)\s*>
          | (?:(?P<label>optional|repeated)\s+)? (?P<type>[\w.]+) )
        \s+ (?P<name>\w+) \s*=\s* (?P<number>\d+)""",
    re.VERBOSE,
)
_COLUMN = re.compile(r"Column (['\"].*['\"])\.\Z")


@dataclass(frozen=True, slots=True)
class ParsedField:
    """A field of a message.

    Attributes:
        name, number, label: As in the text; a field without a label is `optional`.
        type: Type of its values, or of a map's items: a scalar's name, or a message's full name.
        key: Scalar type of a map's keys; empty otherwise.
        column: Its name in the table.
        is_variant: Whether its values are variants as JSON text.
    """

    name: str
    number: int
    label: Label
    type: str
    key: str
    column: str
    is_variant: bool


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A message.

    Attributes:
        full_name: Includes package and enclosing messages, without a leading dot.
        fields: In the order of the text.
        reserved: Numbers of removed fields.
        is_nested: Whether it is defined in another message.
    """

    full_name: str
    is_nested: bool
    fields: list[ParsedField] = field(default_factory=list)
    reserved: set[int] = field(default_factory=set)


def parsed_messages(text: str) -> tuple[str, Mapping[str, ParsedMessage]]:
    """Return the package, and the messages by full name, each before its nested messages."""
    package, stack = "", list[str]()
    found: dict[str, ParsedMessage] = {}
    for statement, end, comments in _statements(text):
        scope = ".".join([package, *stack] if package else stack)
        if end == "{":
            match = _MESSAGE.match(statement)
            stack.append(match[1] if match else "")
            if match:
                name = f"{scope}.{match[1]}" if scope else match[1]
                found[name] = ParsedMessage(name, is_nested=len(stack) > 1)
        elif end == "}":
            if stack:
                stack.pop()
        elif match := _PACKAGE.match(statement):
            package = match[1]
        elif scope in found:
            _add(found[scope], statement, comments)
    for message in found.values():
        message.fields[:] = [
            _resolve_type(each, message.full_name, found) for each in message.fields
        ]
    return package, found


def earlier_numbers(text: str) -> Mapping[str, Numbers]:
    """Return the field numbers of each message in a text of `protobuf_text`, by full name."""
    return {
        name: Numbers(
            {each.name: each.number for each in message.fields}, frozenset(message.reserved)
        )
        for name, message in parsed_messages(text)[1].items()
    }


def _add(message: ParsedMessage, statement: str, comments: Sequence[str]) -> None:
    if match := _RESERVED.match(statement):
        for first, last in _NUMBERS.findall(match[1]):
            message.reserved.update(range(int(first), int(last or first) + 1))
    elif match := _FIELD.match(statement):
        name, is_map = match["name"], match["key"] is not None
        message.fields.append(
            ParsedField(
                name=name,
                number=int(match["number"]),
                label="map"
                if is_map
                else "repeated"
                if match["label"] == "repeated"
                else "optional",
                type=match["item"] if is_map else match["type"],
                key=match["key"] or "",
                column=_column(name, comments),
                is_variant=IS_VARIANT in comments,
            )
        )


def _column(name: str, comments: Sequence[str]) -> str:
    """Return a field's name in the table, which is in its comment if it differs."""
    for comment in reversed(comments):
        if match := _COLUMN.match(comment):
            try:
                column = str(literal_eval(match[1]))
            except (ValueError, SyntaxError):
                continue
            # The table's own comment may have the same form.
            if column != name and name.startswith(allowed_name(column)):
                return column
    return name


def _resolve_type(
    found: ParsedField, scope: str, messages: Mapping[str, ParsedMessage]
) -> ParsedField:
    """Return a field with the full name of its type: the innermost message of that name."""
    name = found.type
    while scope and not name.startswith("."):
        if f"{scope}.{found.type}" in messages:
            name = f".{scope}.{found.type}"
        scope = scope.rpartition(".")[0]
    return ParsedField(
        found.name,
        found.number,
        found.label,
        name.removeprefix("."),
        found.key,
        found.column,
        found.is_variant,
    )


def _statements(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each statement, the `;`, `{` or `}` after it, and the lines of comments before it."""
    parts: list[str] = []
    comments: list[str] = []
    for token in _TOKEN.finditer(text):
        if token["end"]:
            yield "".join(parts).strip(), token["end"], comments
            parts, comments = [], []
        elif token["part"]:
            parts.append(token["part"])
        else:
            lines = (token["line"] or token["block"] or "").splitlines()
            comments += [line.strip(" \t*") for line in lines]
