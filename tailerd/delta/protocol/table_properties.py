"""Table properties this reader honours, read from `metaData.configuration`.

Protocol: PROTOCOL.md#change-metadata and the sections of each feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
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
CHECKPOINT_PROTECTION = "delta.requireCheckpointProtectionBeforeVersion"

DEFAULT_SECONDS = {LOG_RETENTION: 30 * 86_400.0, DELETED_FILE_RETENTION: 7 * 86_400.0}
"""How long log entries and removed data files are kept where a table does not say."""

_UNIT_SECONDS = {
    "week": 604_800.0,
    "day": 86_400.0,
    "hour": 3_600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
}
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_COUNT = re.compile(r"[+-]?\d{1,12}(\.\d{1,9})?")


def is_enabled(configuration: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Tell whether a boolean property is `true`, in any case; absent means `default`."""
    text = configuration.get(name, "").strip().lower()
    return text == "true" if text else default


def is_disabled(configuration: Mapping[str, str], name: str) -> bool:
    """Tell whether a boolean property that is on by default is `false`, in any case."""
    return configuration.get(name, "").strip().lower() == "false"


def number(configuration: Mapping[str, str], name: str) -> int | None:
    """Return a whole-number property; None when absent or no number."""
    text = configuration.get(name, "").strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def duration_seconds(configuration: Mapping[str, str], name: str) -> float:
    """Return a retention in seconds; its default where it is absent or no interval.

    Args:
        name: One of `DEFAULT_SECONDS`.
    """
    seconds = parse_interval(configuration.get(name, ""))
    return DEFAULT_SECONDS[name] if seconds is None else seconds


def parse_interval(text: str) -> float | None:
    """Return the seconds of `interval 7 days`, `30 days` or `interval 1 week 2 hours`; else None.

    Months and years have no fixed length, so Delta does not take them either.
    """
    words = text.strip().lower().removeprefix("interval").split()
    if not words or len(words) % 2:
        return None
    seconds = 0.0
    for count, unit in zip(words[::2], words[1::2], strict=True):
        length = _UNIT_SECONDS.get(unit.removesuffix("s"))
        if length is None or not _COUNT.fullmatch(count):
            return None
        seconds += float(count) * length
    return seconds if seconds >= 0 else None


def retention_seconds(configuration: Mapping[str, str]) -> float:
    """Return how long after its time a commit's entry and its data files are kept at least."""
    return min(duration_seconds(configuration, name) for name in DEFAULT_SECONDS)
