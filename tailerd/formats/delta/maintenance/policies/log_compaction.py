"""Decides when a log compaction is due."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.formats.delta.maintenance.policies.base import (
    READER_SECONDS_PER_COMMIT,
    WRITER_BYTES_PER_SECOND,
    CommitFigures,
    LogStats,
    replay_seconds,
    spell_bytes,
    spell_seconds,
)
from tailerd.formats.maintenance import Decision

MAX_BYTES = 64 * 1024**2
"""Maximum size of a compaction: it is built in memory, and readers load it as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionPolicy:
    """By commits since the newest checkpoint or compaction.

    Attributes:
        every_commits: None for never.
    """

    every_commits: int | None = None

    def decide(self, stats: LogStats, now_ms: int) -> Decision:
        """Return whether a compaction is due, and of which versions."""
        if self.every_commits is None:
            return _not("Compactions are not switched on.")
        after = -1 if stats.compacted_until is None else stats.compacted_until
        left = tuple(commit for commit in stats.commits if commit.version > after)
        if len(left) < max(2, self.every_commits):
            return _not(
                f"{len(left)} commits are in no compaction, and {self.every_commits} make it due."
            )
        commits = _first_run(left)
        if len(commits) < 2:
            return _not("The commits that follow each other are too large for one file.")
        start, end = commits[0].version, commits[-1].version
        written = sum(commit.size_bytes for commit in commits)
        return Decision(
            job="log_compaction",
            is_due=True,
            reason=f"{len(left)} commits are in no checkpoint and no compaction;"
            f" {self.every_commits} make it due.",
            cost=f"reads {spell_bytes(written)} and writes up to as much",
            saves=f"{len(commits) - 1} requests and up to {spell_seconds(replay_seconds(commits))}"
            " for readers that use compactions",
            cost_seconds=replay_seconds(commits) + written / WRITER_BYTES_PER_SECOND,
            cost_bytes=written,
            saves_seconds=(len(commits) - 1) * READER_SECONDS_PER_COMMIT,
            start_version=start,
            end_version=end,
        )


def _first_run(commits: tuple[CommitFigures, ...]) -> tuple[CommitFigures, ...]:
    """Return the first run of at least two consecutive commits that fit one file."""
    run: list[CommitFigures] = []
    size = 0
    for commit in commits:
        if size + commit.size_bytes > MAX_BYTES:
            if len(run) > 1:
                break
            run, size = [], 0
        if commit.size_bytes <= MAX_BYTES:
            run.append(commit)
            size += commit.size_bytes
    return tuple(run)


def _not(reason: str) -> Decision:
    return Decision(job="log_compaction", is_due=False, reason=reason)
