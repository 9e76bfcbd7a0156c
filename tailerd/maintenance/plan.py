"""All policies of one table, and what they say together."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailerd.maintenance.policies.base import Decision, LogStats
from tailerd.maintenance.policies.checkpoint import CheckpointPolicy
from tailerd.maintenance.policies.checksum import ChecksumPolicy
from tailerd.maintenance.policies.log_compaction import LogCompactionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPolicy:
    """Whether what has expired is deleted.

    Attributes:
        is_enabled: Off by default: what is deleted cannot be read again.
        older_than_seconds: Keep longer than the table says; never less.
    """

    is_enabled: bool = False
    older_than_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What is wanted for one table."""

    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    log_compaction: LogCompactionPolicy = field(default_factory=LogCompactionPolicy)
    checksum: ChecksumPolicy = field(default_factory=ChecksumPolicy)
    cleanup: CleanupPolicy = field(default_factory=CleanupPolicy)

    def decide(self, stats: LogStats, now_ms: int) -> list[Decision]:
        """Say of every job but cleanup whether it is due, in the order they are done."""
        checkpoint = self.checkpoint.decide(stats, now_ms)
        compaction = self.log_compaction.decide(stats, now_ms)
        if checkpoint.is_due and compaction.is_due:
            compaction = Decision(
                job="log_compaction",
                is_due=False,
                reason="A checkpoint is due, which does more for readers than a compaction.",
            )
        return [self.checksum.decide(stats, now_ms), checkpoint, compaction]
