"""What is wrong beside the tables: from when, how often, until when."""

from __future__ import annotations

from tailerd.telemetry import events
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.problems import ProblemBoard
from tailerd.telemetry.status import StatusBoard
from tests.doubles.sim_clock import SimClock

QUEUE = "https://sqs/1/q"


def failed(attempt: int) -> events.NotificationsFailed:
    return events.NotificationsFailed(
        path=QUEUE, error_code="access_denied", attempt=attempt, error="It is refused."
    )


def undiscovered(*, is_known: bool) -> events.DiscoveryFailed:
    return events.DiscoveryFailed(
        pattern="lake",
        path="s3://lake/*",
        error_code="storage",
        attempt=1,
        error="No answer.",
        is_known=is_known,
    )


async def test_a_problem_lasts_from_its_first_failure_until_it_is_over() -> None:
    clock = SimClock(1000)
    board = ProblemBoard(clock)
    board.handle(failed(1))
    await clock.advance(5)
    board.handle(failed(2))
    [problem] = board.problems
    assert problem.to_json() == {
        "part": "notifications",
        "name": None,
        "path": QUEUE,
        "error": {"code": "access_denied", "message": "It is refused."},
        "attempt": 2,
        "since_ms": 1000,
    }
    board.handle(events.NotificationsResumed(path=QUEUE))
    assert not board.problems


def test_what_is_asked_for_no_more_is_no_problem() -> None:
    board = ProblemBoard(SimClock())
    board.handle(undiscovered(is_known=True))
    board.handle(events.ProblemEnded(part="discovery", path="s3://other/*"))
    assert len(board.problems) == 1
    board.handle(events.ProblemEnded(part="discovery", path="s3://lake/*"))
    assert not board.problems


def test_a_daemon_is_not_ready_before_each_pattern_was_looked_through_once() -> None:
    board = StatusBoard([], SimClock())
    board.handle(undiscovered(is_known=False))
    assert list(board.unready()) == [("discovery lake", "storage")]
    board.handle(events.DiscoveryResumed(pattern="lake", path="s3://lake/*"))
    assert board.is_ready
    board.handle(undiscovered(is_known=True))
    assert board.is_ready


def test_a_daemon_that_waits_for_its_state_is_not_ready() -> None:
    board = StatusBoard([], SimClock())
    waits = events.StateAwaited(
        path="s3://b/state", error_code="state_in_use", attempt=1, error="Another has it."
    )
    board.handle(waits)
    assert list(board.unready()) == [("state", "state_in_use")]
    board.handle(events.StateTaken(path="s3://b/state"))
    assert board.is_ready


def test_problems_are_counted_by_part_and_error_while_they_last() -> None:
    metrics = Metrics(SimClock())
    metrics.handle(failed(1))
    line = b'tailerd_daemon_problems{error_code="access_denied",job="notifications"} 1.0'
    assert line in metrics.exposition()
    metrics.handle(events.NotificationsResumed(path=QUEUE))
    assert b"tailerd_daemon_problems{" not in metrics.exposition()
