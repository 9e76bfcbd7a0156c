"""Decides when a checkpoint is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailerd.formats.delta.maintenance.policies.base import (
    WRITER_BYTES_PER_SECOND,
    LogStats,
    after_ms,
    spell_bytes,
    spell_seconds,
)
from tailerd.formats.maintenance import Decision

DEFAULT_COMMITS = 10
"""The default of other writers, if neither the policy nor the table sets an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """By commits, bytes, age or replay time of a cold reader: the first limit reached counts.

    Attributes:
        is_enabled: Whether checkpoints are written at all.
        every_commits: None for the table's own setting.
        every_bytes, every_seconds, max_replay_seconds: None for no such limit.
        min_interval_seconds: Minimum time between two checkpoints.
        quiet_seconds: Required time without commits; a table that is never quiet waits until it has
            ten times its limit.
        manifest: Form of the manifest of a V2 checkpoint.
    """

    is_enabled: bool = True
    every_commits: int | None = None
    every_bytes: int | None = 64 * 1024**2
    every_seconds: float | None = None
    max_replay_seconds: float | None = None
    min_interval_seconds: float = 10.0
    quiet_seconds: float = 0.0
    manifest: Literal["json", "parquet"] = "json"

    def decide(self, stats: LogStats, now_ms: int) -> Decision:
        """Return whether a checkpoint of the newest version is due."""
        if not self.is_enabled:
            return _not("Checkpoints are not switched on.")
        if not stats.commits:
            return _not("There is no commit since the newest checkpoint.")
        limit = self.every_commits or stats.table_interval or DEFAULT_COMMITS
        reason = self._reached(stats, limit, now_ms)
        if not reason:
            count = len(stats.commits)
            return _not(
                f"{count} commits {_since(stats)}, and {limit} make it due.",
                self._old_enough_ms(stats),
            )
        held, until_ms = self._wait_reason(stats, limit, now_ms)
        if held:
            return _not(f"{reason[:-1]}, but {held}", until_ms)
        read = stats.commit_bytes + stats.live_bytes
        seconds = stats.replay_seconds + read / WRITER_BYTES_PER_SECOND
        return Decision(
            job="checkpoint",
            is_due=True,
            reason=reason,
            cost=f"takes about {spell_seconds(seconds)}, reads about {spell_bytes(read)} and writes"
            " up to as much",
            saves=f"about {spell_seconds(stats.replay_seconds)} and {len(stats.commits)} requests"
            " for each reader that opens the table",
            cost_seconds=seconds,
            cost_bytes=read,
            saves_seconds=stats.replay_seconds,
            start_version=stats.version,
            end_version=stats.version,
        )

    def _reached(self, stats: LogStats, limit: int, now_ms: int) -> str:
        """Return the limit that was reached; empty for none."""
        count, size = len(stats.commits), stats.commit_bytes
        age = (now_ms - stats.commits[0].time_ms) / 1000
        replay = stats.replay_seconds
        if count >= limit:
            return f"{count} commits {_since(stats)} reach the limit of {limit}."
        if self.every_bytes is not None and size >= self.every_bytes:
            most = spell_bytes(self.every_bytes)
            return f"{spell_bytes(size)} of commits reach the limit of {most}."
        if self.every_seconds is not None and age >= self.every_seconds:
            return f"The oldest commit since the checkpoint is {spell_seconds(age)} old."
        if self.max_replay_seconds is not None and replay >= self.max_replay_seconds:
            return f"A cold reader needs about {spell_seconds(replay)} for the commits."
        return ""

    def _old_enough_ms(self, stats: LogStats) -> int | None:
        if self.every_seconds is None:
            return None
        return after_ms(stats.commits[0].time_ms, self.every_seconds)

    def _wait_reason(self, stats: LogStats, limit: int, now_ms: int) -> tuple[str, int | None]:
        """Return why the checkpoint must wait, and until when; an empty reason if it need not."""
        if stats.checkpoint_ms is not None:
            since = (now_ms - stats.checkpoint_ms) / 1000
            # A checkpoint in the future was written before the clock was set back.
            if 0 <= since < self.min_interval_seconds:
                until_ms = after_ms(stats.checkpoint_ms, self.min_interval_seconds)
                return f"the last one was {spell_seconds(since)} ago.", until_ms
        quiet = (now_ms - stats.commits[-1].time_ms) / 1000
        if 0 <= quiet < self.quiet_seconds and len(stats.commits) < 10 * limit:
            until_ms = after_ms(stats.commits[-1].time_ms, self.quiet_seconds)
            return f"the last commit was {spell_seconds(quiet)} ago.", until_ms
        return "", None


def _since(stats: LogStats) -> str:
    """Return the starting point of the commit count, as part of a sentence."""
    if stats.checkpoint_version is None:
        return "and no checkpoint yet"
    return "since the newest checkpoint"


def _not(reason: str, due_ms: int | None = None) -> Decision:
    return Decision(job="checkpoint", is_due=False, reason=reason, due_ms=due_ms)
