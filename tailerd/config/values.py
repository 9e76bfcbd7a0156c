"""Parse human-readable values: sizes, durations, addresses, starting positions."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from tailerd.clock import zone_named

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)},
    **{f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)},
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a listener.

    Attributes:
        host: Host name or IP address, IPv6 without brackets.
        port: 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return self.host in _LOOPBACK or self.host.startswith("127.")


def parse_size(value: object) -> object:
    """Convert `256MiB` to bytes; values that are not text are left to the type's own check.

    Raises:
        ValueError: The text is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(
            "write a number with a unit (B, kB, KiB, MB, MiB, GB, GiB), such as 256MiB"
        )
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def format_size(number: int) -> str | int:
    """Return a number of bytes in the largest binary unit that gives a whole number of it."""
    for prefix in "TGMK":
        size = _SIZE_UNITS[f"{prefix}iB".lower()]
        if number and number % size == 0:
            return f"{number // size}{prefix}iB"
    return number


def parse_duration(value: object) -> object:
    """Convert `500ms`, `10s`, `2m`, `1h`, `7d` to seconds.

    Raises:
        ValueError: The value is not a duration, or has no unit.
    """
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _DURATION_UNITS:
        raise ValueError("write a number with a unit (ms, s, m, h, d), such as 10s")
    return float(match[1]) * _DURATION_UNITS[match[2].lower()]


def parse_address(text: str) -> Address:
    """Split `host:port`.

    Raises:
        ValueError: The text has another form, or the port is out of range.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or (":" in bare and bare == host):
        raise ValueError("write host:port, such as 127.0.0.1:9464 or [::1]:9464")
    if int(port) > 65535:
        raise ValueError("a port is at most 65535")
    return Address(host=bare, port=int(port))


def parse_start(value: object) -> object:
    """Convert the forms of `from` to text: YAML parses numbers and dates.

    Raises:
        ValueError: The value is a boolean.
    """
    if isinstance(value, bool):
        raise ValueError(_START_FORM)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, int | dt.date):
        return str(value)
    return value


_START_FORM = (
    "write snapshot, latest, a version such as 42, or a timestamp such as 2024-02-29T12:00:00Z"
)


def check_start(text: str) -> str:
    """Return `text` if it is a valid starting position.

    Raises:
        ValueError: It is not.
    """
    if text in ("snapshot", "latest") or (text.isascii() and text.isdecimal()):
        return text
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_START_FORM) from None
    return text


def _check_address(text: str) -> str:
    parse_address(text)
    return text


def check_zone(text: str) -> str:
    """Return `text` if it is the name of a time zone.

    Raises:
        ValueError: It is not.
    """
    return zone_named(text).key


SizeBytes = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["256MiB"]}),
]
"""A number of bytes, written with a unit."""

Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    # The dumped text can be parsed again, which templates of tables need.
    PlainSerializer(lambda seconds: f"{seconds:.6f}s", return_type=str),
    WithJsonSchema({"type": "string", "examples": ["10s"]}),
]
"""A duration in seconds, written with a unit."""

Listen = Annotated[str, AfterValidator(_check_address)]
"""`host:port`."""

Start = Annotated[
    str,
    BeforeValidator(parse_start),
    AfterValidator(check_start),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["snapshot", "latest", 42]}),
]
"""The starting position of a pipeline without a saved offset."""

TimeZone = Annotated[str, AfterValidator(check_zone)]
"""The IANA name of a time zone."""


def parse_http_url(value: str) -> str:
    """Return the URL of a service without its trailing slash.

    Raises:
        ValueError: It is not an HTTP URL, or contains credentials.
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("write a URL with http:// or https:// and a host")
    # Not only in the host: a secret that contains a slash would end it.
    if "@" in value:
        raise ValueError("credentials do not belong in the URL; use access_key_id of `storage`")
    return value.rstrip("/")


HttpUrl = Annotated[str, AfterValidator(parse_http_url)]
