"""Encode single values as JSON text: the format shared by the column and row paths.

Years 0000..9999 are written with four digits, all others with a sign and at least four.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from json.encoder import encode_basestring

MICROS_PER_SECOND = 1_000_000
MICROS_PER_DAY = 86_400 * MICROS_PER_SECOND

FIRST_PLAIN_DAY = -719_528
"""0000-01-01 in days since the epoch: the first day whose year needs no sign."""
LAST_PLAIN_DAY = 2_932_896
"""9999-12-31 in days since the epoch."""

_EPOCH = datetime(1970, 1, 1)
_FIRST_DATETIME = (datetime.min - _EPOCH) // timedelta(microseconds=1)
_LAST_DATETIME = (datetime.max - _EPOCH) // timedelta(microseconds=1)

LINE_ENDS = "\x85\u2028\u2029"
"""Unicode's line ends outside ASCII: many readers split lines there too."""
_ESCAPED = re.compile(f"[\ud800-\udfff{LINE_ENDS}]")


def quote_text(text: str) -> str:
    r"""Return a JSON string.

    Only `"`, `\`, control characters, line ends and surrogates are escaped.
    """
    quoted = encode_basestring(text)
    if not text.isascii():
        return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
    return quoted


def quote_utf8(raw: bytes) -> str:
    r"""Return the JSON string of UTF-8 bytes that may be invalid.

    Surrogates encoded on their own (CESU-8, WTF-8) become `\ud800` escapes, which readers combine
    if they are a pair; other invalid bytes become U+FFFD.
    """
    try:
        return quote_text(raw.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        return quote_text(raw.decode("utf-8", "replace"))


def date_text(days: int) -> str:
    """Return `YYYY-MM-DD` of days since the epoch, proleptic Gregorian, for any year."""
    # Days to civil, counted from 0000-03-01 in eras of 400 years.
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def count_days(year: int, month: int, day: int) -> int:
    """Return days since the epoch of a date, proleptic Gregorian, for any year."""
    # Civil to days, years beginning in March: the inverse of `date_text`.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def time_text(micros: int) -> str:
    """Return `HH:MM:SS.ffffff` of microseconds since midnight."""
    seconds, fraction = divmod(micros, MICROS_PER_SECOND)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


def timestamp_text(micros: int, *, is_utc: bool = True) -> str:
    """Return `YYYY-MM-DDTHH:MM:SS.ffffff`, with `Z` for an instant, of microseconds since 1970."""
    if _FIRST_DATETIME <= micros <= _LAST_DATETIME:
        moment = _EPOCH + timedelta(microseconds=micros)
        return moment.isoformat(timespec="microseconds") + ("Z" if is_utc else "")
    days, micros_of_day = divmod(micros, MICROS_PER_DAY)
    return f"{date_text(days)}T{time_text(micros_of_day)}{'Z' if is_utc else ''}"


_SEPARATORS = re.compile(r'("(?:[^"\\]|\\.)*")|([,:])')


def spaced_text(text: str) -> str:
    """Return a JSON text with a space after each separator, as Spark writes nested map keys."""
    return _SEPARATORS.sub(lambda match: match[1] or f"{match[2]} ", text)
