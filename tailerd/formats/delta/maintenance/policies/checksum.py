"""Decides when a version checksum is due."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.formats.delta.maintenance.policies.base import LogStats
from tailerd.formats.maintenance import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumPolicy:
    """The newest version gets one if its writer did not write it.

    Attributes:
        is_enabled: Whether checksums are written at all.
    """

    is_enabled: bool = False

    def decide(self, stats: LogStats, now_ms: int) -> Decision:
        """Return whether the newest version's checksum is due."""
        if not self.is_enabled:
            return Decision(job="checksum", is_due=False, reason="Checksums are not switched on.")
        if stats.has_checksum:
            return Decision(
                job="checksum", is_due=False, reason=f"Version {stats.version} has a checksum."
            )
        if not stats.has_commit:
            return Decision(
                job="checksum",
                is_due=False,
                reason=f"The log has no commit of version {stats.version} any more to check.",
            )
        return Decision(
            job="checksum",
            is_due=True,
            reason=f"Version {stats.version} has no checksum.",
            cost="reads the log as far as a reader does and writes some KiB",
            saves="lets every reader check what it replayed",
            start_version=stats.version,
            end_version=stats.version,
        )
