"""Partition values: text in the log, typed constants in rows.

Protocol: PROTOCOL.md#partition-value-serialization
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from zoneinfo import ZoneInfo

import pyarrow as pa

from tailerd.errors import CorruptLogError

_DATE = re.compile(r"([+-]?\d{1,6})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"(?P<date>[+-]?\d{1,6}-\d{1,2}-\d{1,2})"
    r"(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<part>\d{1,9}))?)?"
    r"(?P<zone>Z|[+-]\d{2}:?\d{2}(?::\d{2})?)?)?",
    re.ASCII,
)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE)
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})
_MICROS = 1_000_000
_DIGITS = Context(prec=76)
"""Digits of the widest decimal; Python's default rounds to 28."""


def parse_partition_value(text: str | None, arrow_type: pa.DataType, column: str) -> pa.Scalar:
    """Return the constant of `arrow_type` for a serialized partition value.

    An absent value is null, and so is an empty text of any type except string and binary: for these
    the protocol specifies null, but every writer means an empty value, and Delta Spark reads it so.

    A timestamp without a zone is taken as UTC. The log does not record the writer's zone: if it is
    known to be another one, apply `in_zone` to the text first.

    Raises:
        CorruptLogError: The text is not a value of the type.
    """
    is_text = pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type)
    if text is None or (text == "" and not is_text):
        return pa.scalar(None, arrow_type)
    try:
        return _parse(text, arrow_type)
    except (ValueError, OverflowError, InvalidOperation, pa.ArrowException) as error:
        raise CorruptLogError(
            f"The partition value {text!r} of column {column} is not a valid {arrow_type}:"
            f" {error}.",
            remedy="The writer is broken: rewrite the file's partition.",
        ) from error


def _parse(text: str, arrow_type: pa.DataType) -> pa.Scalar:
    types = pa.types
    simple: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], object]], ...] = (
        (types.is_string, str),
        (types.is_integer, _integer),
        (types.is_floating, _float),
        (types.is_boolean, _boolean),
        (types.is_binary, str.encode),
    )
    for fits, convert in simple:
        if fits(arrow_type):
            return pa.scalar(convert(text), arrow_type)
    if types.is_decimal(arrow_type):
        return pa.scalar(_decimal(text, arrow_type.scale), arrow_type)
    if types.is_date(arrow_type):
        return pa.scalar(_days(text), pa.int32()).cast(arrow_type)
    if types.is_timestamp(arrow_type):
        micros = _micros(text, is_instant=arrow_type.tz is not None)
        return pa.scalar(micros, pa.int64()).cast(arrow_type)
    raise ValueError("columns of this type cannot partition a table")


def _integer(text: str) -> int:
    # Python also takes underscores, and digits of other scripts.
    if _INTEGER.fullmatch(text.strip()) is None:
        raise ValueError("not a whole number")
    return int(text)


def _float(text: str) -> float:
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) is None and _NOT_FINITE.fullmatch(stripped) is None:
        raise ValueError("not a number")
    return float(stripped)


def _decimal(text: str, scale: int) -> Decimal:
    if _NUMBER.fullmatch(text.strip()) is None:
        raise ValueError("not a number")
    value = Decimal(text.strip())
    exact = value.quantize(Decimal(1).scaleb(-scale), context=_DIGITS)
    if exact != value:
        raise ValueError("more digits than the type has")
    return exact


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("neither true nor false")
    return word in _TRUE


def _days(text: str) -> int:
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a date")
    return _days_from_civil(int(match[1]), int(match[2]), int(match[3]))


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since the epoch in the proleptic Gregorian calendar, for any year."""
    # The calendar repeats after 400 years, so any year can be moved into the range of `datetime`.
    shift = (year - 2000) // 400
    date = datetime.date(year - 400 * shift, month, day)
    return date.toordinal() - 719_163 + shift * 146_097


def _micros(text: str, *, is_instant: bool) -> int:
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a timestamp")
    hour, minute = int(match["hour"] or 0), int(match["minute"] or 0)
    second = int(match["second"] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("not a time of day")
    seconds = _days(match["date"]) * 86_400 + hour * 3600 + minute * 60 + second
    micros = seconds * _MICROS + int((match["part"] or "").ljust(6, "0")[:6])
    return micros - (_offset_seconds(match["zone"]) if is_instant else 0) * _MICROS


def _offset_seconds(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    sign = -1 if zone[0] == "-" else 1
    digits = zone[1:].replace(":", "")
    return sign * (int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:] or 0))


def lacks_zone(text: str) -> bool:
    """Return whether a text is a timestamp without a zone."""
    match = _TIMESTAMP.fullmatch(text.strip())
    return match is not None and match["zone"] is None


def in_zone(text: str, zone: ZoneInfo) -> str:
    """Return a timestamp without a zone with its offset in `zone`; other texts unchanged.

    As in Java, a local time that occurs twice is the earlier instant, and one that is skipped is
    moved forward by the length of the gap.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None or match["zone"] is not None:
        return text
    try:
        local = _near(match["date"], int(match["hour"] or 0), int(match["minute"] or 0))
    except ValueError:
        # Parsing the text raises the error.
        return text
    local = local.replace(second=min(int(match["second"] or 0), 59))
    # Both of Java's rules use the offset before the change, which is fold=0.
    offset = zone.utcoffset(local)
    assert offset is not None
    seconds = offset.days * 86_400 + offset.seconds
    hours, rest = divmod(abs(seconds), 3600)
    sign = "-" if seconds < 0 else "+"
    time = "" if match["hour"] else " 00:00"
    return f"{match[0]}{time}{sign}{hours:02}:{rest // 60:02}:{rest % 60:02}"


def _near(date: str, hour: int, minute: int) -> datetime.datetime:
    """Return a local time with the same offset as this one, in the range of `datetime`."""
    match = _DATE.fullmatch(date)
    assert match is not None
    year = int(match[1])
    if year > datetime.MAXYEAR:
        # The last rule of a zone applies forever, and weekdays repeat after 400 years.
        year -= -(-(year - datetime.MAXYEAR) // 400) * 400
    if year < datetime.MINYEAR:
        # Before the first change of a zone all days have the same offset.
        return datetime.datetime.min
    return datetime.datetime(year, int(match[2]), int(match[3]), hour, minute)
