from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.telemetry.freshness import BUDGET_DAYS, FreshnessDays, Objective
from tailerd.telemetry.history import HistoryBoard
from tests.doubles.sim_clock import SimClock

DAY_MS = 86_400_000
OBJECTIVE = Objective(within_seconds=300, target=99.9)
SAMPLES = st.lists(
    st.tuples(st.floats(0, 60), st.floats(0, 1000), st.integers(0, BUDGET_DAYS * DAY_MS - 1)).map(
        lambda each: (round(each[0], 1), *each[1:])
    ),
    max_size=40,
)


def counted(samples: list[tuple[float, float, int]]) -> FreshnessDays:
    days = FreshnessDays()
    for seconds, lag, at_ms in samples:
        days.add(seconds, lag, OBJECTIVE, at_ms)
    return days


@given(samples=SAMPLES)
def test_every_second_counts_once_and_is_late_beyond_the_limit(
    samples: list[tuple[float, float, int]],
) -> None:
    samples.sort(key=lambda each: each[2])
    found = counted(samples).describe(OBJECTIVE, BUDGET_DAYS * DAY_MS - 1)
    late = sum(seconds for seconds, lag, _ in samples if lag > 300)
    assert found["known_seconds"] == pytest.approx(sum(each[0] for each in samples), abs=0.01)
    assert found["late_seconds"] == pytest.approx(late, abs=0.01)
    assert found["budget_seconds"] == 2592.0
    assert found["budget_left_seconds"] == pytest.approx(2592.0 - late, abs=0.01)


@given(samples=SAMPLES, at=st.integers(0, 40))
def test_a_restart_loses_and_doubles_nothing(
    samples: list[tuple[float, float, int]], at: int
) -> None:
    samples.sort(key=lambda each: each[2])
    later = counted(samples[at:])
    later.restore(json.loads(json.dumps(counted(samples[:at]).to_json())))
    end = BUDGET_DAYS * DAY_MS - 1
    one, other = later.describe(OBJECTIVE, end), counted(samples).describe(OBJECTIVE, end)
    assert one == pytest.approx(other, abs=0.01)


def test_days_before_the_last_thirty_are_forgotten() -> None:
    days = counted([(60, 1000, 0), (60, 0, 5 * DAY_MS)])
    assert days.describe(OBJECTIVE, 29 * DAY_MS)["late_seconds"] == 60
    assert days.describe(OBJECTIVE, 30 * DAY_MS)["late_seconds"] == 0
    for day in range(100):
        days.add(1, 0, OBJECTIVE, day * DAY_MS)
    assert len(days.to_json()) == BUDGET_DAYS


def test_a_machine_that_slept_counts_a_minute() -> None:
    days = counted([(86_400, 1000, 0)])
    assert days.describe(OBJECTIVE, 0)["late_seconds"] == 60


@pytest.mark.parametrize(
    "saved", [None, 7, {}, [[1, 2]], [["a", 1, 1]], [[1, -1, 0]], [[True, 1, 1]], [[1, 1e300, 0]]]
)
def test_damaged_days_are_ignored(saved: object) -> None:
    days = counted([(5, 0, 0)])
    days.restore(saved)
    assert days.to_json() == [[0, 5, 0]]


async def test_the_board_counts_tables_with_an_objective_whose_lag_is_known() -> None:
    clock = SimClock()
    board = HistoryBoard(clock)
    for lag in (0.0, 301.0, None):
        board.sample({"a": lag, "b": lag}, {"a": OBJECTIVE})
        await clock.advance(5)
    assert board.freshness("a", OBJECTIVE)["known_seconds"] == 5
    assert board.freshness("a", OBJECTIVE)["late_seconds"] == 5
    assert board.freshness("b", OBJECTIVE)["known_seconds"] == 0
    assert board.take_dirty() == ["a"]
    other = HistoryBoard(clock)
    assert other.restore("a", board.dump("a"))
    assert other.freshness("a", OBJECTIVE) == board.freshness("a", OBJECTIVE)
