"""Table properties this reader honours, read from `metaData.configuration`.

Protocol: PROTOCOL.md#change-metadata and the sections of each feature.
"""

from __future__ import annotations

from collections.abc import Mapping

CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
COLUMN_MAPPING_MODE = "delta.columnMapping.mode"
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
IN_COMMIT_TIMESTAMP_VERSION = "delta.inCommitTimestampEnablementVersion"
IN_COMMIT_TIMESTAMP_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
ROW_TRACKING = "delta.enableRowTracking"
MATERIALIZED_ROW_ID = "delta.rowTracking.materializedRowIdColumnName"
MATERIALIZED_ROW_COMMIT_VERSION = "delta.rowTracking.materializedRowCommitVersionColumnName"


def is_enabled(configuration: Mapping[str, str], name: str) -> bool:
    """Tell whether a boolean property is `true`, in any case; absent means false."""
    return configuration.get(name, "").strip().lower() == "true"


def number(configuration: Mapping[str, str], name: str) -> int | None:
    """Return a whole-number property; None when absent or no number."""
    text = configuration.get(name, "").strip()
    return int(text) if text.lstrip("-").isdigit() else None
