"""Convert a configuration for display: all settings, secrets hidden."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from tailerd.config.values import format_size

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(
    r"passw|pwd|secret|token|credential|jaas|private|signature"
    r"|(api|access|account|shared|storage|encryption)[._-]?key",
    re.IGNORECASE,
)
_SIZE_NAME = re.compile(r"^memory$|_bytes(_|$)")
_WHOLE_SECONDS = re.compile(r"^(\d+)\.0+s$")
_LITERAL = re.compile(r"'(?:[^']|'')*'|\b\d[\w.]*")
_USER = re.compile(r"(://)[^/@\s]+@")
_ASSIGNED = re.compile(
    r"((?:passw\w*|pwd|secret\w*|token|signature|sig|\w*access_?key\w*)\s*[=:]\s*)[^\s;&,]+",
    re.IGNORECASE,
)


def shown_settings(section: BaseModel, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return a section as JSON values, including defaults, with secrets replaced.

    Values of a secret type are hidden, and also values that look secret by their name or their
    position in a text, because options passed to third parties have no secret type.

    Args:
        without: Names of fields to leave out.
    """
    dumped = section.model_dump(mode="json", by_alias=True, exclude=set(without))
    shown: dict[str, Any] = _show_value("", dumped)
    return shown


def _show_value(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("mask") and isinstance(value.get("where"), str):
            # A condition may have values of columns that are masked.
            value = {**value, "where": _LITERAL.sub("***", value["where"])}
        return {str(key): _show_value(str(key), each) for key, each in value.items()}
    if isinstance(value, list):
        return [_show_value(name, each) for each in value]
    if not isinstance(value, str):
        if value not in (None, True, False) and _SECRET_NAME.search(name):
            return HIDDEN
        # Also numbers in options of third parties: the text says the same as the number.
        return format_size(value) if isinstance(value, int) and _SIZE_NAME.search(name) else value
    if not value:
        return value
    # How pydantic dumps secret types.
    if set(value) == {"*"} or _SECRET_NAME.search(name):
        return HIDDEN
    value = _WHOLE_SECONDS.sub(r"\1s", value)
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", value))
