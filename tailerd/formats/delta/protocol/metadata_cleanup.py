"""Decides which files of the log are no longer needed, and why others stay.

Protocol: PROTOCOL.md#metadata-cleanup; checkpointProtection: its own document
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tailerd.errors import ConfigError, InvalidPropertyError
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.log_path import CHECKPOINT_KINDS, LogFile, LogFileKind
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.delta.protocol.writer_features import CHECKPOINT_PROTECTION

DAY_MS = 86_400_000
LOG_CHANGED = "The log changed since it was read."


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """The files that cleanup deletes.

    Attributes:
        files: In the order of deletion: if it stops at any point, every version to keep can still
            be rebuilt.
        oldest_version: The oldest version that can be rebuilt afterwards; None if nothing is
            deleted.
        stays: A file of the checkpoint of that version, as listed.
        reason: Why no file, or no further one, is deleted; a sentence.
    """

    files: tuple[LogFile, ...] = ()
    oldest_version: int | None = None
    stays: LogFile | None = None
    reason: str = ""

    def common_with(self, earlier: CleanupPlan) -> CleanupPlan:
        """Return the files that both this plan and an earlier one delete."""
        if self.oldest_version is None or earlier.oldest_version is None:
            return self if self.oldest_version is None else earlier
        first, second = self, earlier
        if earlier.oldest_version < self.oldest_version:
            first, second = earlier, self
        of_both = frozenset(second.files)
        files = tuple(file for file in first.files if file in of_both)
        return replace(first, files=files) if files else CleanupPlan(reason=LOG_CHANGED)


def midnight_before(time_ms: int) -> int:
    """Return midnight UTC of a time's day: with it, cleanup changes the log only once a day."""
    return time_ms - time_ms % DAY_MS


def cutoff_ms(state: TableState, now_ms: int, older_than_seconds: float | None = None) -> int:
    """Return the time before which commits have expired.

    Args:
        older_than_seconds: Retention, if longer than the table's own.

    Raises:
        InvalidPropertyError: The table's retention is not a valid interval.
        ConfigError: `older_than_seconds` is shorter than the table's retention.
    """
    configuration = state.metadata.configuration
    seconds = properties.duration_seconds(configuration, properties.LOG_RETENTION)
    if seconds is None:
        raise InvalidPropertyError(
            f"The table has {properties.LOG_RETENTION} ="
            f" {configuration[properties.LOG_RETENTION]!r}, which Delta cannot read as an interval,"
            " so it is not known what may be deleted, and nothing is.",
            remedy="Set it in weeks, days or smaller units, for example to 'interval 365 days'.",
        )
    if older_than_seconds is not None and older_than_seconds < seconds:
        raise ConfigError(
            f"Cleanup of files older than {older_than_seconds / 86_400:g} days would delete files"
            f" that the table retains: its {properties.LOG_RETENTION} is {seconds / 86_400:g}"
            " days.",
            remedy="Raise older_than, or lower the table's property.",
        )
    seconds = max(seconds, older_than_seconds or 0)
    return midnight_before(now_ms - round(seconds * 1000))


def cutoff_commit(times_ms: Mapping[int, int], cutoff: int) -> int | None:
    """Return the newest commit not newer than the cutoff; None without any.

    Args:
        times_ms: Time of each commit, increasing with the version.
    """
    return max((version for version, time in times_ms.items() if time <= cutoff), default=None)


def cleanup_terms(state: TableState) -> object:
    """Return the protocol and the properties that affect cleanup, for comparison."""
    names = (
        properties.EXPIRED_LOG_CLEANUP,
        properties.LOG_RETENTION,
        properties.CHECKPOINT_PROTECTION,
    )
    configuration = state.metadata.configuration
    return state.protocol, [configuration.get(name) for name in names]


def is_allowed(state: TableState) -> str:
    """Return why the table's own properties forbid cleanup; empty if they do not."""
    configuration = state.metadata.configuration
    if not properties.is_enabled(configuration, properties.EXPIRED_LOG_CLEANUP, default=True):
        return f"The table has {properties.EXPIRED_LOG_CLEANUP} = false."
    return ""


def plan_cleanup(
    state: TableState,
    listing: LogListing,
    files: Iterable[LogFile],
    newest_expired: int | None,
    needed_from: int | None = None,
    required_by: str = "a pipeline",
) -> CleanupPlan:
    """Decide what to delete.

    Args:
        state: Of the newest version.
        listing: The whole log.
        files: All its files, as listed, including those of incomplete checkpoints.
        newest_expired: The cutoff commit.
        needed_from: The oldest version that must stay rebuildable; None if there is none.
        required_by: The reader that needs it, human-readable.
    """
    if reason := is_allowed(state):
        return CleanupPlan(reason=reason)
    if newest_expired is None:
        return CleanupPlan(reason="No commit has expired.")
    limit, reason = newest_expired, "Younger entries have not expired."
    if needed_from is not None and needed_from < limit:
        limit = needed_from
        reason = f"Version {needed_from} is still needed by {required_by}."
    kept = max((version for version in listing.checkpoints if version <= limit), default=None)
    if kept is None:
        return CleanupPlan(reason=f"There is no checkpoint at or before version {limit}.")
    if kept < _protected_before(state):
        return CleanupPlan(
            reason=f"Checkpoints before version {_protected_before(state)} are protected, and the"
            f" log may only be cut there or later; today it would be at {kept}."
        )
    gone = sorted((file for file in files if _is_before(file, kept)), key=_deletion_order)
    return CleanupPlan(
        files=tuple(gone),
        oldest_version=kept if gone else None,
        stays=listing.checkpoints[kept][0][0] if gone else None,
        reason=reason if gone else f"There is nothing before the checkpoint of version {kept}.",
    )


def _protected_before(state: TableState) -> int:
    names = state.protocol.writer_features or ()
    if CHECKPOINT_PROTECTION not in names:
        return -1
    configuration = state.metadata.configuration
    return properties.number(configuration, properties.CHECKPOINT_PROTECTION) or -1


def _is_before(file: LogFile, kept: int) -> bool:
    if file.kind is LogFileKind.COMPACTION:
        return file.version <= kept
    return file.version < kept and file.kind is not LogFileKind.SIDECAR


def _deletion_order(file: LogFile) -> tuple[int, int]:
    """Sort compactions first, then by version; a commit before the checkpoint of its version."""
    is_compaction = file.kind is LogFileKind.COMPACTION
    return (-1 if is_compaction else file.version, file.kind in CHECKPOINT_KINDS)


def expired_sidecars(
    sidecars: Iterable[LogFile], named: frozenset[str], now_ms: int
) -> tuple[LogFile, ...]:
    """Return sidecars that no checkpoint references, not even one that is being written.

    Args:
        named: Names of all sidecars that any checkpoint references.
        now_ms: Sidecars of the last day stay, counted from its midnight.
    """
    limit = midnight_before(now_ms - DAY_MS)
    return tuple(file for file in sidecars if file.name not in named and file.mtime_ms < limit)
