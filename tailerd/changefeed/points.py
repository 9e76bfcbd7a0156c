"""What a user says to begin or end with: a word, a version or a time. Pure."""

from __future__ import annotations

import datetime
import enum

from tailerd.errors import UsageError

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class StartWord(enum.StrEnum):
    """Starting points that are neither a version nor a time."""

    SNAPSHOT = "snapshot"
    LATEST = "latest"


def parse_start(text: str) -> StartWord | int | datetime.datetime:
    """Read `snapshot`, `latest`, a version, or a time (UTC unless it says otherwise).

    Raises:
        UsageError: It is none of them.
    """
    word = text.strip().lower()
    return StartWord(word) if word in tuple(StartWord) else parse_point(text)


def parse_point(text: str) -> int | datetime.datetime:
    """Read a version or a time (UTC unless it says otherwise).

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
            hint="Times look like 2026-11-21, 2026-11-21T09:30:00 or 2026-11-21T09:30:00+01:00.",
        ) from error
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def to_ms(time: datetime.datetime, *, round_up: bool = False) -> int:
    """Return milliseconds since the epoch."""
    micros = (time - _EPOCH) // datetime.timedelta(microseconds=1)
    return -(-micros // 1000) if round_up else micros // 1000


def show_ms(time_ms: int) -> str:
    """Return a commit's time as text: UTC, milliseconds."""
    time = _EPOCH + datetime.timedelta(milliseconds=time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
