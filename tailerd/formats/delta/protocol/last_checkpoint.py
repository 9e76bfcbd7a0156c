"""`_last_checkpoint`: a hint where to start listing; it may be stale, missing or corrupt.

Protocol: PROTOCOL.md#last-checkpoint-file, #json-checksum
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpoint:
    """The fields of the hint that a reader uses."""

    version: int
    size: int | None = None
    parts: int | None = None


def parse_last_checkpoint(body: bytes) -> LastCheckpoint | None:
    """Parse the hint; None if it is torn, has a wrong checksum or is otherwise invalid.

    A reader without a hint lists the whole log, which is slower but correct, so nothing here is an
    error.
    """
    try:
        # Numbers keep their text, which is their canonical form.
        fields = json.loads(
            body, parse_float=_Number, parse_int=_Number, object_pairs_hook=_unique_keys
        )
        version = int(fields["version"])
        size = int(fields["size"]) if fields.get("size") is not None else None
        parts = int(fields["parts"]) if fields.get("parts") is not None else None
        checksum = fields.get("checksum")
        is_whole = checksum is None or checksum == compute_checksum(fields)
    except (ValueError, KeyError, TypeError, RecursionError, ArithmeticError):
        return None
    if version < 0 or not is_whole:
        return None
    return LastCheckpoint(version=version, size=size, parts=parts)


_MAX_DIGITS = 20
"""Digits in the name of a log file."""


class _Number(str):
    """A JSON number by its text."""

    __slots__ = ()

    def __int__(self) -> int:
        number = Decimal(self)
        if number.adjusted() >= _MAX_DIGITS:
            raise ValueError("no version has so many digits")
        return int(number)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate key")
    return fields


def compute_checksum(fields: dict[str, Any]) -> str:
    """Return the MD5 of the canonical form without the top-level `checksum`."""
    rest = {key: value for key, value in fields.items() if key != "checksum"}
    return hashlib.md5(canonical_form(rest).encode(), usedforsecurity=False).hexdigest()


def canonical_form(value: Any) -> str:
    """Return the canonical text of a JSON value: its leaves as path=value, sorted by path."""
    leaves = sorted(_leaves(value, ""), key=lambda leaf: leaf[0].encode())
    return ",".join(f"{path}={text}" for path, text in leaves)


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        named = [(_text(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        named = [(str(index), item) for index, item in enumerate(value)]
    else:
        return [(path, _scalar(value))]
    return [
        leaf for name, item in named for leaf in _leaves(item, f"{path}+{name}" if path else name)
    ]


def _scalar(value: object) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    return json.dumps(value)


def _text(value: str) -> str:
    return f'"{quote(value, safe="-._~")}"'


def last_checkpoint_body(**fields: int) -> bytes:
    """Return the hint with these fields and its checksum."""
    return json.dumps({**fields, "checksum": compute_checksum(dict(fields))}).encode()
