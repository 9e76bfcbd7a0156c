"""Policies look at figures and a time, and say whether a job is due and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailerd.formats.delta.maintenance.policies import (
    MAX_COMPACTION_BYTES,
    READER_BYTES_PER_SECOND,
    CheckpointPolicy,
    ChecksumPolicy,
    CommitFigures,
    LogCompactionPolicy,
    LogStats,
    Policies,
)

NOW = 1_700_000_000_000
DAY = 86_400_000
REPLAYED_IN_A_SECOND = round(READER_BYTES_PER_SECOND)


def stats(commits: int, *, size: int = 1000, ago_ms: int = 60_000, **more: object) -> LogStats:
    """Return a log with a checkpoint of version 9 and commits after it."""
    found = LogStats(
        version=9 + commits,
        commits=tuple(
            CommitFigures(version=10 + n, size_bytes=size, time_ms=NOW - ago_ms)
            for n in range(commits)
        ),
        checkpoint_version=9,
        checkpoint_ms=NOW - 600_000,
    )
    return replace(found, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "log", "is_due"),
    [
        (CheckpointPolicy(), stats(9), False),
        (CheckpointPolicy(), stats(10), True),
        (CheckpointPolicy(), stats(10, table_interval=100), False),
        (CheckpointPolicy(), stats(100, table_interval=100), True),
        (CheckpointPolicy(every_commits=5), stats(5, table_interval=100), True),
        (CheckpointPolicy(every_commits=50), stats(49), False),
        (CheckpointPolicy(), stats(1, size=64 * 2**20), True),
        (CheckpointPolicy(every_bytes=None), stats(1, size=2**40), False),
        (CheckpointPolicy(every_seconds=3600), stats(1, ago_ms=3_599_000), False),
        (CheckpointPolicy(every_seconds=3600), stats(1, ago_ms=3_600_000), True),
        (
            CheckpointPolicy(every_bytes=None, max_replay_seconds=1),
            stats(1, size=REPLAYED_IN_A_SECOND - 1_000_000),
            False,
        ),
        (
            CheckpointPolicy(every_bytes=None, max_replay_seconds=1),
            stats(1, size=REPLAYED_IN_A_SECOND),
            True,
        ),
        (CheckpointPolicy(), stats(0), False),
    ],
)
def test_a_checkpoint_is_due_by_the_first_limit_that_is_reached(
    policy: CheckpointPolicy, log: LogStats, is_due: bool
) -> None:
    decision = policy.decide(log, NOW)
    assert decision.is_due is is_due
    assert decision.reason.endswith(".")
    assert bool(decision.cost) is bool(decision.saves) is is_due


@pytest.mark.parametrize(
    ("since_ms", "is_due"),
    [(9_999, False), (10_000, True), (-DAY, True), (DAY, True)],
    ids=["just before", "in time", "the clock was set back", "the clock was set forward"],
)
def test_two_checkpoints_keep_apart_whatever_the_clock_does(since_ms: int, is_due: bool) -> None:
    decision = CheckpointPolicy().decide(stats(10, checkpoint_ms=NOW - since_ms), NOW)
    assert decision.is_due is is_due
    if not is_due:
        assert "the last one was 10.0 s ago" in decision.reason


def test_a_checkpoint_waits_for_a_quiet_time_but_not_for_ever() -> None:
    policy = CheckpointPolicy(quiet_seconds=60)
    assert not policy.decide(stats(10, ago_ms=59_000), NOW).is_due
    assert policy.decide(stats(10, ago_ms=60_000), NOW).is_due
    assert policy.decide(stats(10, ago_ms=-DAY), NOW).is_due
    assert not policy.decide(stats(99, ago_ms=0), NOW).is_due
    assert policy.decide(stats(100, ago_ms=0), NOW).is_due


def test_a_first_checkpoint_needs_no_other() -> None:
    log = replace(stats(10), checkpoint_version=None, checkpoint_ms=None)
    assert CheckpointPolicy().decide(log, NOW).is_due


def test_a_compaction_takes_what_is_in_no_other() -> None:
    policy = LogCompactionPolicy(every_commits=5)
    decision = policy.decide(stats(12, compacted_until=15), NOW)
    assert (decision.start_version, decision.end_version) == (16, 21)
    assert not policy.decide(stats(12, compacted_until=17), NOW).is_due
    assert not LogCompactionPolicy().decide(stats(1000), NOW).is_due
    assert not LogCompactionPolicy(every_commits=1).decide(stats(1), NOW).is_due


def test_a_compaction_is_no_larger_than_memory_allows() -> None:
    policy = LogCompactionPolicy(every_commits=5)
    decision = policy.decide(stats(10, size=MAX_COMPACTION_BYTES // 4), NOW)
    assert (decision.start_version, decision.end_version) == (10, 13)
    large = policy.decide(stats(10, size=MAX_COMPACTION_BYTES), NOW)
    assert not large.is_due
    assert "too large" in large.reason


def test_a_checksum_is_due_where_the_writer_left_none() -> None:
    assert ChecksumPolicy(is_enabled=True).decide(stats(1), NOW).is_due
    assert not ChecksumPolicy(is_enabled=True).decide(stats(1, has_checksum=True), NOW).is_due
    assert not ChecksumPolicy().decide(stats(1), NOW).is_due


def test_a_checkpoint_makes_a_compaction_needless() -> None:
    policies = Policies(log_compaction=LogCompactionPolicy(every_commits=5))
    due = {decision.job for decision in policies.decide(stats(10), NOW) if decision.is_due}
    assert due == {"checkpoint"}
    due = {decision.job for decision in policies.decide(stats(6), NOW) if decision.is_due}
    assert due == {"log_compaction"}
