"""How many retries a server gets."""

from __future__ import annotations

from tailerd.storage.retries import RetryBudget


def test_a_broken_server_gets_ever_fewer_retries_and_a_healthy_one_gets_them_back() -> None:
    budget = RetryBudget(20, cost=5)
    assert [budget.take() for _ in range(6)] == [True] * 4 + [False] * 2
    for _ in range(10):
        budget.give()
    assert [budget.take() for _ in range(3)] == [True, True, False]


def test_a_server_that_fails_always_still_gets_a_retry_now_and_then() -> None:
    budget = RetryBudget(20, cost=5)
    taken = [budget.take() for _ in range(1000)]
    assert 100 < sum(taken[4:]) < 250


def test_no_more_is_saved_up_than_there_was() -> None:
    budget = RetryBudget(10, cost=5)
    for _ in range(100):
        budget.give()
    assert [budget.take() for _ in range(3)] == [True, True, False]
