"""Table properties that tailerd uses, read from `metaData.configuration`.

Protocol: PROTOCOL.md#change-metadata and the sections of each feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
LEGACY_CHANGE_DATA_FEED = "delta.enableChangeDataCapture"
"""The old name, which counts where the new one is not set, as in Delta Spark."""
COLUMN_MAPPING_MODE = "delta.columnMapping.mode"
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
IN_COMMIT_TIMESTAMP_VERSION = "delta.inCommitTimestampEnablementVersion"
IN_COMMIT_TIMESTAMP_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
LOG_RETENTION = "delta.logRetentionDuration"
DELETED_FILE_RETENTION = "delta.deletedFileRetentionDuration"
SET_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
CHECKPOINT_INTERVAL = "delta.checkpointInterval"
CHECKPOINT_POLICY = "delta.checkpointPolicy"
STATS_AS_JSON = "delta.checkpoint.writeStatsAsJson"
STATS_AS_STRUCT = "delta.checkpoint.writeStatsAsStruct"
EXPIRED_LOG_CLEANUP = "delta.enableExpiredLogCleanup"
ROW_TRACKING = "delta.enableRowTracking"
ROW_TRACKING_SUSPENDED = "delta.rowTrackingSuspended"
ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"
CHECKPOINT_PROTECTION = "delta.requireCheckpointProtectionBeforeVersion"

DEFAULT_SECONDS = {LOG_RETENTION: 30 * 86_400.0, DELETED_FILE_RETENTION: 7 * 86_400.0}
"""How long log entries and removed data files are kept by default."""

_DAYS = {"week": 7, "day": 1}
_MONTHS = {"year": 12, "month": 1}
_MICROSECONDS = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SPACE = r"[ \t-\r\x1c-\x1f]"
_TERM = re.compile(
    rf"{_SPACE}*(?P<sign>[+-]?){_SPACE}*"
    r"(?:(?P<whole>[0-9]{1,18})(?:\.(?P<part>[0-9]{0,9}))?|\.(?P<only>[0-9]{1,9}))"
    rf"{_SPACE}+(?P<unit>[a-z]+?)s?(?:{_SPACE}+|$)"
)
_MAX_DAYS = 2**31 - 1
_MAX_MICROSECONDS = 2**63 - 1
_WHOLE = re.compile(r"-?[0-9]{1,30}")


def is_enabled(configuration: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return whether a boolean property is `true`, in any case; absent means `default`."""
    text = configuration.get(name, "").strip().lower()
    return text == "true" if text else default


def is_disabled(configuration: Mapping[str, str], name: str) -> bool:
    """Return whether a boolean property that defaults to true is `false`, in any case."""
    return configuration.get(name, "").strip().lower() == "false"


def number(configuration: Mapping[str, str], name: str) -> int | None:
    """Return a whole-number property; None if absent or not a number."""
    text = configuration.get(name, "").strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def duration_seconds(configuration: Mapping[str, str], name: str) -> float | None:
    """Return a retention in seconds; its default if absent, None if it is not an interval.

    The retention of an unreadable text is not known: nothing must be deleted because of it.

    Args:
        name: One of `DEFAULT_SECONDS`.
    """
    text = configuration.get(name)
    return DEFAULT_SECONDS[name] if text is None else parse_interval(text)


def parse_interval(text: str) -> float | None:
    """Return the seconds of `interval 7 days`, `30 days` or `interval 1 week 2 hours`; else None.

    Accepts the same as Delta Spark: the text of a CalendarInterval that is not negative as a whole,
    with fractions only for seconds. Months and years have no fixed length.
    """
    text = text.strip().lower().removeprefix("interval ")
    days = months = microseconds = at = 0
    while at < len(text) or not at:
        term = _TERM.match(text, at)
        if term is None:
            return None
        at, unit = term.end(), term["unit"]
        sign = -1 if term["sign"] == "-" else 1
        count = sign * int(term["whole"] or 0)
        fraction = term["only"] if term["part"] is None else term["part"]
        if fraction is not None and unit != "second":
            return None
        if unit in _DAYS:
            days += count * _DAYS[unit]
        elif unit in _MONTHS:
            months += count * _MONTHS[unit]
        elif unit in _MICROSECONDS:
            part = int((fraction or "").ljust(9, "0")) // 1000
            microseconds += count * _MICROSECONDS[unit] + sign * part
        else:
            return None
        if abs(days) > _MAX_DAYS or abs(microseconds) > _MAX_MICROSECONDS:
            return None
    seconds = days * 86_400 + microseconds / 1_000_000
    return seconds if seconds >= 0 and not months else None


def retention_seconds(configuration: Mapping[str, str]) -> float:
    """Return the minimum time for which a commit's log entry and data files are kept.

    For warnings: if a text is not an interval, other writers may use the default.
    """
    known = {name: duration_seconds(configuration, name) for name in DEFAULT_SECONDS}
    return min(DEFAULT_SECONDS[n] if each is None else each for n, each in known.items())
