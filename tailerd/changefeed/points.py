"""Start and end points as users write them: a word, a version or a time. Pure."""

from __future__ import annotations

import datetime
import enum
import re

from tailerd.errors import UsageError

_AGO = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h|d|w)", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DAYS = {"today": 0, "yesterday": 1}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class StartWord(enum.StrEnum):
    """Starting points that are neither a version nor a time."""

    SNAPSHOT = "snapshot"
    LATEST = "latest"


def parse_start(text: str) -> StartWord | int | datetime.datetime:
    """Parse `snapshot`, `latest`, a version, or a time (UTC unless it has a zone).

    Raises:
        UsageError: It is none of them.
    """
    word = text.strip().lower()
    return StartWord(word) if word in tuple(StartWord) else parse_point(text)


def parse_point(text: str) -> int | datetime.datetime:
    """Parse a version or a time (UTC unless it has a zone).

    Raises:
        UsageError: It is neither.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is neither snapshot, latest, a version nor a time.",
            remedy="Times look like 2026-11-21, 2026-11-21T09:30:00 or 2026-11-21T09:30:00+01:00;"
            " commands also take -2h, yesterday and today.",
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def format_point(point: object) -> str:
    """Return a version, a time or a text as the text of a point, with relative times made absolute.

    Raises:
        UsageError: It is something else, or a negative version.
    """
    if isinstance(point, bool) or not isinstance(point, int | str | datetime.datetime):
        raise UsageError(
            f"{point!r} is not a version or a time.", remedy="Give an int, a datetime or a text."
        )
    if isinstance(point, datetime.datetime):
        return point.isoformat()
    if isinstance(point, int) and point < 0:
        raise UsageError(f"Version {point} is below 0.", remedy="The first version is 0.")
    return resolved_point(str(point), datetime.datetime.now(datetime.UTC))


def resolved_point(text: str, now: datetime.datetime) -> str:
    """Return a point with relative times made absolute: `-2h`, `yesterday`, `today`.

    Args:
        text: Any point; others are returned unchanged.
        now: With a zone.
    """
    word = text.strip().lower()
    if word in _DAYS:
        day = now.astimezone(datetime.UTC) - datetime.timedelta(days=_DAYS[word])
        return day.replace(hour=0, minute=0, second=0, microsecond=0).isoformat()
    match = _AGO.fullmatch(word)
    if match is None:
        return text
    try:
        ago = datetime.timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        return (now.astimezone(datetime.UTC) - ago).isoformat()
    except OverflowError as error:
        raise UsageError(f"{text!r} is too long ago.", remedy="Write for example -2h.") from error


def to_ms(time: datetime.datetime, *, round_up: bool = False) -> int:
    """Return milliseconds since the epoch."""
    micros = (time - _EPOCH) // datetime.timedelta(microseconds=1)
    return -(-micros // 1000) if round_up else micros // 1000


def show_ms(time_ms: int) -> str:
    """Return a commit's time as text: UTC, milliseconds; a number beyond the years 1 to 9999."""
    try:
        time = _EPOCH + datetime.timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
