"""Find the position of each field in a YAML text, and describe errors without its values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

FieldPath = tuple[str, ...]
"""Keys of mappings, and list indexes as text, outermost first."""


class Position(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


def positions(text: str) -> Mapping[FieldPath, Position]:
    """Return the position of every key and list entry; empty if the text is not valid YAML."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    found: dict[FieldPath, Position] = {}
    pending: list[tuple[FieldPath, yaml.Node]] = [] if node is None else [((), node)]
    seen: set[int] = set()
    while pending:
        path, here = pending.pop()
        if id(here) in seen:
            # An alias: the position is that of its anchor.
            continue
        seen.add(id(here))
        if isinstance(here, yaml.MappingNode):
            for key, value in here.value:
                below = (*path, str(key.value))
                found[below] = _position(key)
                pending.append((below, value))
        elif isinstance(here, yaml.SequenceNode):
            for number, value in enumerate(here.value):
                below = (*path, str(number))
                found[below] = _position(value)
                pending.append((below, value))
    return found


def nearest_position(path: FieldPath, known: Mapping[FieldPath, Position]) -> Position | None:
    """Return the position of a field, or of the nearest section around it; None without one."""
    lengths = range(len(path), 0, -1)
    return next((known[path[:length]] for length in lengths if path[:length] in known), None)


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def parse_field_path(where: str, content: object) -> FieldPath:
    """Return the path of a dotted name in `content`; names of tables may contain dots.

    The last parts may be missing in `content`; the name is then split at its dots.
    """
    path: list[str] = []
    rest = where
    while rest:
        key, below = _next_key(rest, content)
        path.append(key)
        content = below
        rest = rest[len(key) :].removeprefix(".")
    return tuple(path)


def _next_key(rest: str, content: object) -> tuple[str, Any]:
    if isinstance(content, Mapping):
        keys = sorted((str(key) for key in content), key=len, reverse=True)
        for key in keys:
            if rest == key or (key and rest.startswith(f"{key}.")):
                return key, {str(k): v for k, v in content.items()}[key]
    first = rest.partition(".")[0]
    if isinstance(content, list) and first.isdecimal() and int(first) < len(content):
        return first, content[int(first)]
    return (first, None) if first else (rest, None)


def without(content: dict[str, Any], path: FieldPath) -> dict[str, Any] | None:
    """Return `content` without one field; None if it has no such field."""
    if not path or path[0] not in content:
        return None
    if len(path) == 1:
        return {key: value for key, value in content.items() if key != path[0]}
    below = content[path[0]]
    if not isinstance(below, dict):
        # A list entry, or a field of something other than a section: remove the whole value.
        return {key: value for key, value in content.items() if key != path[0]}
    rest = without({str(key): value for key, value in below.items()}, path[1:])
    return None if rest is None else {**content, path[0]: rest}


QUOTE_VALUES = (
    "Write values in quotes that begin with one of * & ! @ % ` or have `: ` or ` #` in them."
)
_INDENT = "Indent all fields of a section by the same number of spaces."

_SLIPS: tuple[tuple[str, str, str], ...] = (
    ("expected <block end>", "the line is indented differently from the fields above", _INDENT),
    (
        "mapping values are not allowed",
        "the line has a second `: `, or it is indented too far",
        f"Write a value with `: ` in quotes. {_INDENT}",
    ),
    (
        "could not find expected ':'",
        "a line is no `key: value`",
        "Write a colon and a space after each key, and close every quote.",
    ),
    (
        "sequence entries are not allowed",
        "a list begins in the middle of a line",
        "Write its entries below the key, or as [a, b].",
    ),
    (
        "expected ',' or",
        "a comma or a closing bracket is missing",
        "Separate entries with commas, and close every [ and {.",
    ),
    (
        "expected the node content",
        "a value or a closing bracket is missing",
        "Write a value, and close every [ and {.",
    ),
    ("end of stream", "a quote is not closed", "Close it."),
    (
        "escape",
        "a backslash in double quotes begins no known escape",
        "Write values with backslashes in single quotes.",
    ),
    ("another document", "it has more than one document", "Remove the line `---`."),
)
"""Part of the parser's message -> the mistake, and the remedy."""
_KEY = re.compile(r"^(\s*(?:-\s+)*)([A-Za-z_][\w.-]*)\s*:(?:\s|$)")


def yaml_mistake(error: Exception, text: str) -> tuple[str, str, str]:
    """Return the position of a mistake, as `:line:column` with the field, its kind, and the remedy.

    Args:
        error: The parser's error. One of ours has the remedy as its `note`.
        text: The parsed text; only field names are taken from it.
    """
    if isinstance(error, RecursionError):
        return "", "it is nested too deep", ""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "", "it has a character that YAML does not allow", "Remove control characters."
    mark = error.problem_mark or error.context_mark
    position, line = "", ""
    if mark is not None:
        field = _field_at(text, mark.line)
        position = f":{mark.line + 1}:{mark.column + 1}" + (f" ({field})" if field else "")
        line = "".join(text.splitlines()[mark.line : mark.line + 1])[: mark.column + 1]
    problem = error.problem or ""
    if error.note:
        return position, problem, error.note
    if line.isspace() and "\t" in line:
        return position, "the line is indented with a tab", "Indent with spaces."
    for part, mistake, remedy in _SLIPS:
        if part in problem:
            return position, mistake, remedy
    # The parser's message quotes the file, which may contain a secret.
    return position, "a value begins with a character that YAML reserves", QUOTE_VALUES


def _field_at(text: str, line: int) -> str:
    """Return the path of the field on a line, from the indentation of keys."""
    path: list[tuple[int, str]] = []
    for each in text.splitlines()[: line + 1]:
        if match := _KEY.match(each):
            indent = len(match[1])
            path = [(depth, key) for depth, key in path if depth < indent]
            path.append((indent, match[2]))
    return ".".join(key for _, key in path)
