"""Computes commit timestamps.

Protocol: PROTOCOL.md#in-commit-timestamps, #add-cdc-file (reading _commit_timestamp)
"""

from __future__ import annotations

from collections.abc import Mapping

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.snapshot import TableState

LOOK_BACK_VERSIONS = 100
"""Earlier versions whose file times are used, so that every reader computes the same time."""


def monotonic_file_times(commits: Mapping[int, LogFile]) -> dict[int, int]:
    """Return each version's time in milliseconds: the file's, but after the version before it.

    Clocks jump and copies lose times, so a time that is not later than its predecessor's is raised
    to one millisecond after it.
    """
    times: dict[int, int] = {}
    last: int | None = None
    for version in sorted(commits):
        time = commits[version].mtime_ms
        if last is not None and time <= last:
            time = last + 1
        times[version] = last = time
    return times


def commit_time_ms(commit: Commit, state: TableState, file_time_ms: int) -> int:
    """Return the commit's timestamp in milliseconds since the epoch.

    Args:
        state: Protocol and metadata with the commit applied.
        file_time_ms: The commit file's monotonic time.

    Raises:
        CorruptLogError: In-commit timestamps are enabled, and the commit's first action has none.
    """
    if not state.has_in_commit_timestamps:
        return file_time_ms
    time = commit.timestamp_in_commit_ms
    if time is None or not commit.is_info_first:
        raise CorruptLogError(
            f"Version {commit.version} has no inCommitTimestamp in its first action, though the"
            " table has in-commit timestamps enabled.",
            remedy="The writer is broken: restore the log entry from a backup.",
        )
    return time
