"""Finds CHAR(n) types, also nested ones, in the type that Spark keeps in a column's metadata. Pure.

Delta stores CHAR(n) as string, and `__CHAR_VARCHAR_TYPE_STRING` of the top-level column has the
declared type, such as `struct<code:char(5),tags:array<varchar(9)>>`. Readers pad its CHAR values.

Spark: CharVarcharUtils.scala
"""

from __future__ import annotations

import functools
import re

Path = tuple[str, ...]
"""Names of fields; `element` of a list, `key` and `value` of a map."""

CharLengths = tuple[tuple[Path, int], ...]

_WORD = re.compile(r"\s*([a-z_]+)\s*(?:\((\d{1,6})(?:\s*,\s*-?\d+)?\))?\s*", re.IGNORECASE)
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^:`<>,]+?))\s*:")
_PARTS = {"array": ("element",), "map": ("key", "value")}


@functools.lru_cache(maxsize=1024)
def char_lengths(text: str) -> CharLengths:
    """Return the lengths of the CHAR types in a type's text; none if it is not understood."""
    found: list[tuple[Path, int]] = []
    try:
        end = _read_type(text, 0, (), found)
    except (ValueError, RecursionError):
        return ()
    return tuple(found) if end == len(text) else ()


def _read_type(text: str, at: int, path: Path, found: list[tuple[Path, int]]) -> int:
    """Add the CHAR types of the type at a position; return the position after it."""
    match = _WORD.match(text, at)
    if match is None:
        raise ValueError("no type")
    word, length, at = match[1].lower(), match[2], match.end()
    if word == "char" and length:
        found.append((path, int(length)))
    if word in _PARTS:
        for part, opening in zip(_PARTS[word], "<,", strict=False):
            at = _read_type(text, _expect(text, at, opening), (*path, part), found)
        return _expect(text, at, ">")
    if word != "struct":
        return at
    at = _expect(text, at, "<")
    while not text.startswith(">", at):
        name = _NAME.match(text, at)
        if name is None:
            raise ValueError("no name")
        field = name[1].replace("``", "`") if name[1] else name[2]
        at = _read_type(text, name.end(), (*path, field), found)
        at = at if text.startswith(">", at) else _expect(text, at, ",")
    return at + 1


def _expect(text: str, at: int, sign: str) -> int:
    if not text.startswith(sign, at):
        raise ValueError(f"no {sign!r}")
    return at + len(sign)
