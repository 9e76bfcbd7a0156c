"""All policies of one Delta table, and their combined decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from tailerd.formats.delta.protocol.data_file import FORMAT
from tailerd.formats.maintenance import (
    CleanupPolicy,
    DailyPause,
    Decision,
    EngineSettings,
    MaintenancePolicies,
    paused_until_ms,
)

MAX_COMPACTION_BYTES = 64 * 1024**2
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
            return _skip_compaction("Compactions are not switched on.")
        after = -1 if stats.compacted_until is None else stats.compacted_until
        left = tuple(commit for commit in stats.commits if commit.version > after)
        if len(left) < max(2, self.every_commits):
            return _skip_compaction(
                f"{len(left)} commits are in no compaction, and {self.every_commits} make it due."
            )
        commits = _first_run(left)
        if len(commits) < 2:
            return _skip_compaction(
                "The commits that follow each other are too large for one file."
            )
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
        if size + commit.size_bytes > MAX_COMPACTION_BYTES:
            if len(run) > 1:
                break
            run, size = [], 0
        if commit.size_bytes <= MAX_COMPACTION_BYTES:
            run.append(commit)
            size += commit.size_bytes
    return tuple(run)


def _skip_compaction(reason: str) -> Decision:
    return Decision(job="log_compaction", is_due=False, reason=reason)


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
            saves="lets every reader check its replay",
            start_version=stats.version,
            end_version=stats.version,
        )


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
            return _skip_checkpoint("Checkpoints are not switched on.")
        if not stats.commits:
            return _skip_checkpoint("There is no commit since the newest checkpoint.")
        limit = self.every_commits or stats.table_interval or DEFAULT_COMMITS
        reason = self._find_limit(stats, limit, now_ms)
        if not reason:
            count = len(stats.commits)
            return _skip_checkpoint(
                f"{count} commits {_since(stats)}, and {limit} make it due.",
                self._old_enough_ms(stats),
            )
        held, until_ms = self._wait_reason(stats, limit, now_ms)
        if held:
            return _skip_checkpoint(f"{reason[:-1]}, but {held}", until_ms)
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

    def _find_limit(self, stats: LogStats, limit: int, now_ms: int) -> str:
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


def _skip_checkpoint(reason: str, due_ms: int | None = None) -> Decision:
    return Decision(job="checkpoint", is_due=False, reason=reason, due_ms=due_ms)


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
    def from_section(cls, requested: MaintenancePolicies) -> Policies:
        """Return the policies of a section `maintenance`.

        Raises:
            ConfigError: It has fields of other formats.
        """
        section = requested.jobs_as(_Section, FORMAT)
        compaction = section.log_compaction
        return cls(
            checkpoint=_checkpoint_policy(section.checkpoint),
            log_compaction=LogCompactionPolicy(
                every_commits=None if compaction is None else compaction.every_commits
            ),
            checksum=ChecksumPolicy(is_enabled=section.checksum),
            cleanup=requested.cleanup,
            pauses=requested.pauses,
            engine=requested.engine,
        )

    def decide(self, stats: LogStats, now_ms: int) -> list[Decision]:
        """Return for every job except cleanup whether it is due, in the order of execution."""
        decisions = self._decide(stats, now_ms)
        until_ms = self.paused_until_ms(now_ms)
        if until_ms is None:
            return decisions
        return [_pause_until(each, until_ms) for each in decisions]

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


def _pause_until(decision: Decision, until_ms: int) -> Decision:
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


READER_SECONDS_PER_COMMIT = 0.0002
READER_BYTES_PER_SECOND = 100e6
"""Estimated time of a cold reader per commit file, and its throughput in reading commits.

Measured with deltalake 1.6 on a local disk (0.18 ms for each of 3,000 small commits, 128 MB/s for
large ones); tailerd needs 0.02 ms and reads 90 MB/s. Remote stores add their latency for each
commit, and Spark its scheduling: the estimate is a lower bound.
"""

CHECKPOINT_READ_BYTES_PER_SECOND = 60e6
"""Throughput of the same reader for a Parquet checkpoint without statistics."""

WRITER_BYTES_PER_SECOND = 40e6
"""Throughput of writing a checkpoint from commits and an earlier checkpoint (one thread)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFigures:
    """A commit since the newest checkpoint."""

    version: int
    size_bytes: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Figures of one log.

    Attributes:
        version: The newest.
        commits: Those after the newest checkpoint, ascending, without a gap at the end.
        checkpoint_version, checkpoint_ms: The newest, and when it was written; None without one.
        compacted_until: Last version after the checkpoint that is in a compaction, or is known to
            need none; None if there is none.
        has_checksum: Whether the newest version has one.
        has_commit: Whether the log has the newest version's commit: a cleanup may leave only its
            checkpoint.
        table_interval: The table's own `delta.checkpointInterval`; None if not set.
        live_bytes: Bytes of the newest checkpoint: an estimate for the next one.
    """

    version: int
    commits: tuple[CommitFigures, ...]
    checkpoint_version: int | None = None
    checkpoint_ms: int | None = None
    compacted_until: int | None = None
    has_checksum: bool = False
    has_commit: bool = True
    table_interval: int | None = None
    live_bytes: int = 0

    @property
    def commit_bytes(self) -> int:
        """Bytes of the commits since the checkpoint."""
        return sum(commit.size_bytes for commit in self.commits)

    @property
    def replay_seconds(self) -> float:
        """Estimated seconds for a cold reader to replay the commits since the checkpoint."""
        return replay_seconds(self.commits)


def replay_seconds(commits: tuple[CommitFigures, ...]) -> float:
    """Return the estimated seconds for a cold reader to replay commits."""
    size = sum(commit.size_bytes for commit in commits)
    return len(commits) * READER_SECONDS_PER_COMMIT + size / READER_BYTES_PER_SECOND


def after_ms(time_ms: int, seconds: float) -> int:
    """Return the first whole millisecond that is later than `seconds` after a time."""
    return time_ms + int(seconds * 1000) + 1


def spell_bytes(count: float) -> str:
    """Return a size, human-readable."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def spell_seconds(seconds: float) -> str:
    """Return a duration, human-readable."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
