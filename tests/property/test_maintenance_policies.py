"""Policies on figures nobody thought of: always an answer, due when it says, never by accident."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailerd.formats.delta.maintenance.policies import (
    CheckpointPolicy,
    ChecksumPolicy,
    CommitFigures,
    LogCompactionPolicy,
    LogStats,
    Policies,
)
from tailerd.formats.maintenance import DAY_MINUTES, MINUTE_MS, DailyPause

NOW = 1_700_000_000_000
DAY_MS = 86_400_000

seconds = st.one_of(st.none(), st.floats(0.001, 10**6))
times = st.integers(NOW - 10 * DAY_MS, NOW + 10 * DAY_MS)


@st.composite
def logs(draw: st.DrawFn) -> LogStats:
    first = draw(st.integers(0, 1000))
    sizes = draw(st.lists(st.integers(0, 10**9), max_size=30))
    commits = tuple(
        CommitFigures(version=first + n, size_bytes=size, time_ms=draw(times))
        for n, size in enumerate(sizes)
    )
    has_checkpoint = first > 0
    return LogStats(
        version=first + len(sizes) - 1 if sizes else first,
        commits=commits,
        checkpoint_version=first - 1 if has_checkpoint else None,
        checkpoint_ms=draw(times) if has_checkpoint else None,
        compacted_until=draw(st.one_of(st.none(), st.integers(first, first + 40))),
        has_checksum=draw(st.booleans()),
        table_interval=draw(st.one_of(st.none(), st.integers(1, 1000))),
        live_bytes=draw(st.integers(0, 10**12)),
    )


pauses = st.builds(
    DailyPause,
    start_minute=st.integers(0, DAY_MINUTES - 1),
    end_minute=st.integers(0, DAY_MINUTES - 1),
)
policies = st.builds(
    Policies,
    checkpoint=st.builds(
        CheckpointPolicy,
        is_enabled=st.sampled_from([True, True, True, False]),
        every_commits=st.one_of(st.none(), st.integers(1, 100)),
        every_bytes=st.one_of(st.none(), st.integers(1, 10**10)),
        every_seconds=seconds,
        max_replay_seconds=seconds,
        min_interval_seconds=st.floats(0, 10**6),
        quiet_seconds=st.floats(0, 10**6),
    ),
    log_compaction=st.builds(
        LogCompactionPolicy, every_commits=st.one_of(st.none(), st.integers(2, 50))
    ),
    checksum=st.builds(ChecksumPolicy, is_enabled=st.booleans()),
    # Three of these leave a part of the day free, as the configuration demands.
    pauses=st.lists(
        st.builds(
            lambda start, length: DailyPause(start, (start + length) % DAY_MINUTES),
            st.integers(0, DAY_MINUTES - 1),
            st.integers(1, DAY_MINUTES // 3 - 1),
        ),
        max_size=3,
    ).map(tuple),
)


@given(policies, logs(), times)
def test_every_decision_is_explained_and_only_what_is_due_has_a_price(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    decisions = expected.decide(log, now_ms)
    assert [each.job for each in decisions] == ["checksum", "checkpoint", "log_compaction"]
    for each in decisions:
        assert each.reason.endswith(".")
        if each.is_due:
            assert each.due_ms is None
            assert each.cost
            assert each.saves
            assert each.cost_seconds >= 0
            assert each.end_version is not None
            assert each.end_version <= log.version


@given(policies, logs(), times)
def test_the_same_figures_give_the_same_answer(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    assert expected.decide(log, now_ms) == expected.decide(log, now_ms)


@given(policies, logs(), times)
def test_what_waits_for_a_time_is_due_then_or_says_a_later_time(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    """A daemon that sleeps until `due_ms` neither sleeps for ever nor wakes again and again."""
    checkpoint = expected.decide(log, now_ms)[1]
    for _ in range(20):
        if checkpoint.is_due or checkpoint.due_ms is None:
            return
        assert checkpoint.due_ms > now_ms
        now_ms = checkpoint.due_ms
        checkpoint = expected.decide(log, now_ms)[1]
    raise AssertionError("it never becomes due")


@given(policies, logs(), times)
def test_time_that_does_not_help_is_not_waited_for(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    checkpoint = expected.decide(log, now_ms)[1]
    if checkpoint.is_due or checkpoint.due_ms is not None:
        return
    assert not expected.decide(log, now_ms + 365 * DAY_MS)[1].is_due or not log.commits


@given(policies, logs(), times)
def test_a_log_without_new_commits_is_left_alone(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    at_rest = replace(log, commits=(), has_checksum=True)
    assert not any(each.is_due for each in expected.decide(at_rest, now_ms))


@given(policies, logs(), times)
def test_a_compaction_lies_behind_the_checkpoint_and_touches_no_other(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    compaction = expected.decide(log, now_ms)[2]
    if compaction.is_due:
        assert compaction.start_version is not None
        assert compaction.end_version is not None
        assert compaction.start_version < compaction.end_version
        assert compaction.start_version > (log.compacted_until or -1)
        known = {commit.version for commit in log.commits}
        assert set(range(compaction.start_version, compaction.end_version + 1)) <= known


@given(policies, logs(), times)
def test_in_a_pause_nothing_but_checksums_is_due(
    expected: Policies, log: LogStats, now_ms: int
) -> None:
    if expected.paused_until_ms(now_ms) is not None:
        due = {each.job for each in expected.decide(log, now_ms) if each.is_due}
        assert due <= {"checksum"}


@given(pauses, times)
def test_a_pause_is_the_part_of_the_day_it_says(pause: DailyPause, now_ms: int) -> None:
    minute = now_ms // MINUTE_MS % DAY_MINUTES
    if pause.start_minute <= pause.end_minute:
        is_in = pause.start_minute <= minute < pause.end_minute
    else:
        is_in = minute >= pause.start_minute or minute < pause.end_minute
    until_ms = pause.end_ms(now_ms)
    assert (until_ms > now_ms) is is_in
    if is_in:
        assert until_ms // MINUTE_MS % DAY_MINUTES == pause.end_minute
        assert until_ms - now_ms <= DAY_MS
