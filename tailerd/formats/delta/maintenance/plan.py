"""All policies of one table, and what they say together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tailerd.formats.delta.maintenance.policies.base import Decision, LogStats
from tailerd.formats.delta.maintenance.policies.checkpoint import CheckpointPolicy
from tailerd.formats.delta.maintenance.policies.checksum import ChecksumPolicy
from tailerd.formats.delta.maintenance.policies.log_compaction import LogCompactionPolicy

DAY_MINUTES = 24 * 60
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPolicy:
    """Whether what has expired is deleted.

    Attributes:
        is_enabled: Off by default: what is deleted cannot be read again.
        older_than_seconds: Keep longer than the table says; never less.
        every_seconds: How often to look for what has expired.
        keep_from: A version that is kept, with all that follow; None for no such wish.
        wait_for_pins: Consumers that must have pinned what they need before anything is deleted.
    """

    is_enabled: bool = False
    older_than_seconds: float | None = None
    every_seconds: float = 3600.0
    keep_from: int | None = None
    wait_for_pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DailyPause:
    """A part of every day in which nothing is done but checksums.

    Attributes:
        start_minute, end_minute: Minutes after midnight UTC; an end before the start is on the
            next day.
    """

    start_minute: int
    end_minute: int

    def end_ms(self, now_ms: int) -> int:
        """Return when the pause is over, or `now_ms` outside of it."""
        length_ms = (self.end_minute - self.start_minute) % DAY_MINUTES * MINUTE_MS
        began_ms = (now_ms - self.start_minute * MINUTE_MS) % (DAY_MINUTES * MINUTE_MS)
        return now_ms - began_ms + length_ms if began_ms < length_ms else now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEngine:
    """Where checkpoints of a table too large for one process are written."""

    master: str = "local[*]"
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What is wanted for one table.

    Attributes:
        spark: Writes the checkpoints; None for this process.
    """

    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    log_compaction: LogCompactionPolicy = field(default_factory=LogCompactionPolicy)
    checksum: ChecksumPolicy = field(default_factory=ChecksumPolicy)
    cleanup: CleanupPolicy = field(default_factory=CleanupPolicy)
    pauses: tuple[DailyPause, ...] = ()
    spark: SparkEngine | None = None

    def decide(self, stats: LogStats, now_ms: int) -> list[Decision]:
        """Say of every job but cleanup whether it is due, in the order they are done."""
        decisions = self._decide(stats, now_ms)
        until_ms = self.paused_until_ms(now_ms)
        if until_ms is None:
            return decisions
        return [_paused(each, until_ms) for each in decisions]

    def paused_until_ms(self, now_ms: int) -> int | None:
        """Return when the pauses that this time falls into are over; None outside of them."""
        until_ms = now_ms
        for _ in self.pauses:
            # One pause may end where another begins.
            until_ms = max([until_ms, *(pause.end_ms(until_ms) for pause in self.pauses)])
        return until_ms if until_ms > now_ms else None

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
