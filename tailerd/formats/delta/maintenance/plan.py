"""All policies of one Delta table, and their combined decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from tailerd.formats.delta.maintenance.policies.base import LogStats
from tailerd.formats.delta.maintenance.policies.checkpoint import CheckpointPolicy
from tailerd.formats.delta.maintenance.policies.checksum import ChecksumPolicy
from tailerd.formats.delta.maintenance.policies.log_compaction import LogCompactionPolicy
from tailerd.formats.delta.protocol.data_file import FORMAT
from tailerd.formats.maintenance import (
    CleanupPolicy,
    DailyPause,
    Decision,
    EngineSettings,
    MaintenancePolicies,
    paused_until_ms,
)


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    every_commits: int | None = None
    every_bytes: int | None = 64 * 1024**2
    every_age: float | None = None
    max_replay: float | None = None
    min_interval: float = 10.0
    quiet: float = 0.0
    manifest: Literal["json", "parquet"] = "json"


class _LogCompaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    every_commits: int


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of the section `maintenance` that are Delta's own, in seconds and bytes.

    Attributes:
        engine: `MaintenancePolicies.engine` is used instead.
    """

    checkpoint: _Checkpoint | None = _Checkpoint()
    log_compaction: _LogCompaction | None = None
    checksum: bool = False
    engine: str = "arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of one table.

    Attributes:
        engine: Writes the checkpoints; None for this process.
    """

    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    log_compaction: LogCompactionPolicy = field(default_factory=LogCompactionPolicy)
    checksum: ChecksumPolicy = field(default_factory=ChecksumPolicy)
    cleanup: CleanupPolicy = field(default_factory=CleanupPolicy)
    pauses: tuple[DailyPause, ...] = ()
    engine: EngineSettings | None = None

    @classmethod
    def of(cls, wanted: MaintenancePolicies) -> Policies:
        """Return the policies of a section `maintenance`.

        Raises:
            ConfigError: It has fields of other formats.
        """
        section = wanted.jobs_as(_Section, FORMAT)
        compaction = section.log_compaction
        return cls(
            checkpoint=_checkpoint_policy(section.checkpoint),
            log_compaction=LogCompactionPolicy(
                every_commits=None if compaction is None else compaction.every_commits
            ),
            checksum=ChecksumPolicy(is_enabled=section.checksum),
            cleanup=wanted.cleanup,
            pauses=wanted.pauses,
            engine=wanted.engine,
        )

    def decide(self, stats: LogStats, now_ms: int) -> list[Decision]:
        """Return for every job except cleanup whether it is due, in the order of execution."""
        decisions = self._decide(stats, now_ms)
        until_ms = self.paused_until_ms(now_ms)
        if until_ms is None:
            return decisions
        return [_paused(each, until_ms) for each in decisions]

    def paused_until_ms(self, now_ms: int) -> int | None:
        """Return when the pauses that include this time end; None if there is none."""
        return paused_until_ms(self.pauses, now_ms)

    def _decide(self, stats: LogStats, now_ms: int) -> list[Decision]:
        checkpoint = self.checkpoint.decide(stats, now_ms)
        compaction = self.log_compaction.decide(stats, now_ms)
        if checkpoint.is_due and compaction.is_due:
            compaction = Decision(
                job="log_compaction",
                is_due=False,
                reason="A checkpoint is due, which does more for readers than a compaction.",
            )
        return [self.checksum.decide(stats, now_ms), checkpoint, compaction]


def _paused(decision: Decision, until_ms: int) -> Decision:
    if not decision.is_due or decision.job == "checksum":
        return decision
    text = f"{decision.reason[:-1]}, but the policy pauses at this time of the day."
    return replace(decision, is_due=False, reason=text, due_ms=until_ms)


def _checkpoint_policy(checkpoint: _Checkpoint | None) -> CheckpointPolicy:
    if checkpoint is None:
        return CheckpointPolicy(is_enabled=False)
    return CheckpointPolicy(
        every_commits=checkpoint.every_commits,
        every_bytes=checkpoint.every_bytes,
        every_seconds=checkpoint.every_age,
        max_replay_seconds=checkpoint.max_replay,
        min_interval_seconds=checkpoint.min_interval,
        quiet_seconds=checkpoint.quiet,
        manifest=checkpoint.manifest,
    )
