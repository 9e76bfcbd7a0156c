"""Find the position of each field in a YAML text."""

from __future__ import annotations

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


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def path_of(where: str, content: object) -> FieldPath:
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
