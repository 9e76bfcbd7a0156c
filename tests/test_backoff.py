"""Attempts are counted the same way wherever something is repeated."""

from __future__ import annotations

import math

import pytest

from tailerd.backoff import Attempts, Backoff, RetryPolicy


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("most", [1, 3])
def test_as_many_attempts_are_made_as_the_policy_says(most: int) -> None:
    attempts, made = Attempts(RetryPolicy(max_attempts=most), Clock()), 0
    while True:
        made += 1
        attempts.count()
        if attempts.are_exhausted:
            break
    assert made == most


def test_time_counts_from_the_first_failure_in_a_row() -> None:
    clock = Clock()
    attempts = Attempts(RetryPolicy(max_seconds=10.0), clock)
    clock.seconds += 60
    assert attempts.seconds_left == math.inf
    attempts.begin()
    clock.seconds += 4
    attempts.count()
    assert (attempts.failed, attempts.seconds_left, attempts.are_exhausted) == (1, 6.0, False)
    clock.seconds += 7
    assert attempts.are_exhausted
    attempts.reset()
    assert (attempts.failed, attempts.are_exhausted) == (0, False)


def test_no_wait_goes_beyond_the_time_that_is_left() -> None:
    clock = Clock()
    policy = RetryPolicy(backoff=Backoff(first_seconds=8.0), max_seconds=10.0)
    attempts = Attempts(policy, clock)
    attempts.count()
    assert 4.0 <= attempts.wait_seconds() <= 8.0
    clock.seconds += 9
    assert attempts.wait_seconds() == 1.0
