"""Describe errors in a YAML text without its values, which may include passwords."""

from __future__ import annotations

import re

import yaml

QUOTE_VALUES = (
    "Write values in quotes that begin with one of * & ! @ % ` or have `: ` or ` #` in them."
)

_TOKEN = re.compile(r"'<[a-z ]+>'")
_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)
_KEY = re.compile(r"^(\s*(?:-\s+)*)([A-Za-z_][\w.-]*)\s*:(?:\s|$)")


def yaml_mistake(error: Exception, text: str) -> str:
    """Return the kind of mistake with its line, column and field.

    Args:
        error: The parser's error.
        text: The parsed text; only field names are taken from it.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it has a character that YAML does not allow"
    mark = error.problem_mark or error.context_mark
    kind = _without_values(error.problem or error.context or "a mistake")
    if mark is None:
        return kind
    field = _field_at(text, mark.line)
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"{kind}, {place}" + (f", in {field}" if field else "")


def _without_values(problem: str) -> str:
    """Return the parser's message; quoted parts are removed unless they are YAML tokens."""
    start, found, end = problem.rpartition(", but found ")
    if _TOKEN.fullmatch(end):
        return f"{_QUOTED.sub('...', start)}{found}{end}"
    return _QUOTED.sub("...", problem)


def _field_at(text: str, line: int) -> str:
    """Return the path of the field on a line, from the indentation of keys."""
    path: list[tuple[int, str]] = []
    for each in text.splitlines()[: line + 1]:
        if match := _KEY.match(each):
            indent = len(match[1])
            path = [(depth, key) for depth, key in path if depth < indent]
            path.append((indent, match[2]))
    return ".".join(key for _, key in path)
